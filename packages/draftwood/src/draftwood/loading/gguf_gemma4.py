"""GGUF files of Gemma 4, whose layers differ in their heads, keys and networks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from draftwood.loading.gguf_metadata import EMBEDDING, FREQS, Metadata, UnknownArchitectureError
from draftwood.loading.gguf_rope import rope_base, rope_parameters
from draftwood.loading.gguf_settings import COMMON, experts_used, require_layers

PER_LAYER = "per_layer_token_embd.weight"
WIDTH = "feed_forward_length"
SLIDING, FULL = "sliding_attention", "full_attention"
STILL = 1e29
"""Factors above turn nothing: converters write 1e30 for pairs that are not turned."""


def gemma4(metadata: Metadata) -> dict[str, Any]:
    """All fields but those that every architecture has.

    Raises:
        UnknownArchitectureError: for what Transformers' class cannot express.
        ValueError: for what is damaged.
    """
    counts = {key: name for key, name in COMMON.items() if key != WIDTH}
    found: dict[str, Any] = {name: metadata.need_count(key) for key, name in counts.items()}
    require_layers(metadata, found["num_hidden_layers"])
    kinds = _kinds(metadata, found["num_hidden_layers"])
    sizes = {FULL: _head_size(metadata, ""), SLIDING: _head_size(metadata, "_swa")}
    shared = _shared_layers(metadata, kinds)
    inputs = metadata.take("embedding_length_per_layer_input", 0)
    found |= {
        "layer_types": kinds,
        "head_dim": sizes[SLIDING],
        "global_head_dim": sizes[FULL],
        "num_kv_shared_layers": shared,
        "sliding_window": metadata.need_count("attention.sliding_window"),
        "final_logit_softcapping": metadata.take("final_logit_softcapping") or None,
        "hidden_size_per_layer_input": inputs,
        "vocab_size_per_layer_input": _rows(metadata, PER_LAYER if inputs else EMBEDDING),
        "rope_parameters": {
            FULL: _rope(metadata, found["max_position_embeddings"], sizes[FULL]),
            SLIDING: {
                "rope_type": "default",
                "rope_theta": rope_base(metadata, "rope.freq_base_swa"),
            },
        },
    }
    found |= _network(metadata, len(kinds), shared)
    return found | _key_heads(metadata, kinds, shared) | _experts(metadata)


def _kinds(metadata: Metadata, layers: int) -> list[str]:
    told = metadata.take_each("attention.sliding_window_pattern", 0)
    if not isinstance(told, list) or len(told) != layers:
        raise ValueError(f"its attention.sliding_window_pattern does not tell of {layers} layers")
    if told[-1]:
        raise UnknownArchitectureError("its last layer sees a window, which Gemma 4's never does")
    return [SLIDING if slides else FULL for slides in told]


def _head_size(metadata: Metadata, ending: str) -> int:
    """Dimensions of a head, all of which are turned."""
    size = metadata.need_count(f"attention.key_length{ending}")
    values = metadata.take(f"attention.value_length{ending}", size)
    turned = metadata.take(f"rope.dimension_count{ending}", size)
    if not size == values == turned:
        raise UnknownArchitectureError(
            f"heads of {size} dimensions have values of {values} and turn {turned}"
        )
    return size


def _shared_layers(metadata: Metadata, kinds: Sequence[str]) -> int:
    """Count the layers at the end that take the keys of earlier ones of their kind."""
    shared = metadata.take("attention.shared_kv_layers", 0)
    if type(shared) is not int or not 0 <= shared < len(kinds):
        raise ValueError(f"{shared} of {len(kinds)} layers share keys")
    own = len(kinds) - shared
    if not {*kinds[own:]} <= {*kinds[:own]}:
        raise ValueError("layers share keys of a kind that no layer before them has")
    return shared


def _rows(metadata: Metadata, name: str) -> int:
    if (shape := metadata.shapes.get(name)) is None:
        raise ValueError(f"the tensor {name} is missing")
    return shape[0]


def _rope(metadata: Metadata, context: int, size: int) -> dict[str, Any]:
    """Positions of layers without a window, which turn the first pairs of a head alone."""
    plain = rope_parameters(replace(metadata, factors={}), context, size)
    if plain["rope_type"] != "default":
        raise UnknownArchitectureError("it scales rotary positions, which Gemma 4 does not")
    if [*metadata.factors] != [FREQS] or len(metadata.factors[FREQS]) != size // 2:
        raise ValueError(f"its factors for rotary positions are not {size // 2} in {FREQS}")
    factors = metadata.factors[FREQS]
    turned = sum(each == 1.0 for each in factors)
    if any(each != 1.0 for each in factors[:turned]) or any(
        each < STILL for each in factors[turned:]
    ):
        raise UnknownArchitectureError("its rotary factors are others than Gemma 4's")
    return plain | {"rope_type": "proportional", "partial_rotary_factor": 2 * turned / size}


def _network(metadata: Metadata, layers: int, shared: int) -> dict[str, Any]:
    """The width of networks, of which those of layers that share keys may have twice as much."""
    told = metadata.take_each(WIDTH, 0)
    widths = told if isinstance(told, list) else [told] * layers
    if len(widths) != layers or type(widths[0]) is not int or widths[0] <= 0:
        raise ValueError(f"its {WIDTH} does not tell of {layers} layers")
    narrow = widths[0]
    is_double = shared > 0 and widths[-1] == 2 * narrow
    if widths != [narrow] * (layers - shared) + [(1 + is_double) * narrow] * shared:
        raise UnknownArchitectureError(f"its {WIDTH} differs between layers ({str(widths)[:40]})")
    return {"intermediate_size": narrow, "use_double_wide_mlp": is_double}


def _key_heads(metadata: Metadata, kinds: Sequence[str], shared: int) -> dict[str, Any]:
    """Heads of keys by the kind of a layer, and whether those without a window are values too."""
    told = metadata.take_each("attention.head_count_kv", 0)
    told = told if isinstance(told, list) else [told] * len(kinds)
    by_kind = {FULL: {*told}, SLIDING: {*told}}
    if len({*told}) > 1 and len(told) == len(kinds):
        pairs = [*zip(kinds, told, strict=True)]
        by_kind = {kind: {count for each, count in pairs if each == kind} for kind in by_kind}
    counts = {kind: next(iter(each)) for kind, each in by_kind.items() if len(each) == 1}
    if any(type(each) is not int or each <= 0 for each in told) or not {*kinds} <= {*counts}:
        raise ValueError(f"its attention.head_count_kv ({str(told)[:40]}) does not fit its layers")
    own = range(len(kinds) - shared)
    full = [layer for layer in own if kinds[layer] == FULL]
    with_values = [layer for layer in full if f"blk.{layer}.attn_v.weight" in metadata.shapes]
    if 0 < len(with_values) < len(full):
        raise UnknownArchitectureError("some of its layers without a window have values")
    is_same, heads = not with_values, counts.get(SLIDING, counts[FULL])
    if not is_same and counts[FULL] != heads:
        raise UnknownArchitectureError("its layers without a window have other heads of values")
    return {
        "num_key_value_heads": heads,
        "num_global_key_value_heads": counts[FULL] if is_same else None,
        "attention_k_eq_v": is_same,
    }


def _experts(metadata: Metadata) -> dict[str, Any]:
    if not metadata.values.get("expert_count"):
        return {"enable_moe_block": False}
    return {
        "enable_moe_block": True,
        "top_k_experts": experts_used(metadata),
        "num_experts": metadata.need_count("expert_count"),
        "moe_intermediate_size": metadata.need_count("expert_feed_forward_length"),
    }
