"""Translate a GGUF file's metadata to a configuration of Transformers.

Every key and tensor that changes a model's numbers is either understood here or refused by name: a
file with one setting more than its reader knows would load as another model, in silence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from draftwood.loading.gguf_metadata import EMBEDDING, Metadata, UnknownArchitectureError
from draftwood.loading.gguf_rope import rope_base, rope_parameters
from draftwood.models.configuration import classes
from draftwood.models.families import FAMILIES

COMMON = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
RMS, LAYER_NORM = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
TOKENS = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}


@dataclass(frozen=True)
class Architecture:
    """Names and settings in Transformers of one of llama.cpp's architectures.

    Attributes:
        more: what is special, from the file's settings and the configuration so far.
        layout: the architecture whose weights are laid out alike, if it is Llama or another one.
        is_native_alone: whether Transformers' classes are never laid out from its files.
        fields: in the place of those that all with rotary positions share.
    """

    model_type: str
    more: Callable[[Metadata, dict[str, Any]], dict[str, Any]] = lambda metadata, common: {}
    layout: str | None = None
    is_native_alone: bool = False
    fields: Callable[[Metadata], dict[str, Any]] | None = None


def configuration(metadata: Metadata) -> dict[str, Any]:
    """The fields of the configuration, ``model_type`` among them.

    Raises:
        UnknownArchitectureError: for an architecture or a setting that is not understood, by name.
        ValueError: for a setting that is damaged.
    """
    known = ARCHITECTURES.get(metadata.architecture)
    if known is None:
        raise UnknownArchitectureError(
            f"its architecture is {metadata.architecture}; readable are {', '.join(ARCHITECTURES)}"
        )
    found = known.fields(metadata) if known.fields else rotary_fields(metadata, known.model_type)
    require_layers(metadata, found["n_layer" if "n_layer" in found else "num_hidden_layers"])
    found |= {"model_type": known.model_type, **_epsilon(metadata, known.model_type)}
    found |= {"vocab_size": _vocabulary(metadata)}
    found |= {"tie_word_embeddings": "output.weight" not in metadata.shapes}
    found |= {name: metadata.tokens.get(key) for key, name in TOKENS.items()}
    ends = [found["eos_token_id"], *metadata.ends] if metadata.ends else []
    if several := list(dict.fromkeys(end for end in ends if end is not None)):
        found["eos_token_id"] = several[0] if len(several) == 1 else several
    found |= known.more(metadata, found)
    metadata.require_nothing_left()
    return found


def require_layers(metadata: Metadata, layers: int) -> None:
    """Raise ValueError for more layers than tensors, before something is made for each of them."""
    if layers > len(metadata.shapes):
        what = f"{layers} layers, and its tensors are {len(metadata.shapes)}"
        raise ValueError(f"its settings ask for {what}")


def _epsilon(metadata: Metadata, model_type: str) -> dict[str, Any]:
    """The norms' epsilon; GPT-2, which is of no family, reads its own."""
    kind = classes(model_type).get(model_type)
    if kind is None:
        return {}
    family = FAMILIES[kind.architecture]
    return {family.epsilon: metadata.need(LAYER_NORM if family.is_layer_norm else RMS)}


def _vocabulary(metadata: Metadata) -> int:
    shape = metadata.shapes.get(EMBEDDING)
    if shape is None:
        raise ValueError(f"the tensor {EMBEDDING} is missing")
    return shape[0]


def rotary_fields(metadata: Metadata, model_type: str) -> dict[str, Any]:
    """The fields that all architectures with rotary positions share."""
    found: dict[str, Any] = {name: metadata.need_count(key) for key, name in COMMON.items()}
    heads = found["num_attention_heads"]
    key_length = metadata.take("attention.key_length", found["hidden_size"] // heads)
    value_length = metadata.take("attention.value_length", key_length)
    if value_length != key_length:
        raise UnknownArchitectureError(
            f"its values have {value_length} dimensions per head and its keys {key_length}"
        )
    rotated = metadata.take("rope.dimension_count", key_length)
    rotates_parts = classes(model_type)[model_type].rotates_parts
    is_part = rotates_parts and 0 < rotated < key_length
    if rotated != key_length and not is_part:
        raise UnknownArchitectureError(
            f"it rotates {rotated} of {key_length} dimensions per head, which {model_type} cannot"
        )
    found |= {
        "num_key_value_heads": _shared_heads(metadata, heads),
        "head_dim": key_length,
        "rope_parameters": rope_parameters(metadata, found["max_position_embeddings"], rotated),
    }
    if rotates_parts:
        found["rope_parameters"]["partial_rotary_factor"] = rotated / key_length
    return found


def _shared_heads(metadata: Metadata, heads: int) -> int:
    """Heads of keys; layers without attention have none, and may be all there are."""
    key = "attention.head_count_kv"
    told = metadata.values.setdefault(key, heads)
    if metadata.architecture in ("lfm2", "lfm2moe", "granitehybrid") and isinstance(told, list):
        metadata.values[key] = [each for each in told if each] or heads
    return metadata.need_count(key)


def _gpt2(metadata: Metadata) -> dict[str, Any]:
    names = {
        "context_length": "n_positions",
        "block_count": "n_layer",
        "embedding_length": "n_embd",
        "feed_forward_length": "n_inner",
        "attention.head_count": "n_head",
    }
    found = {name: metadata.need_count(key) for key, name in names.items()}
    if metadata.take("attention.head_count_kv", found["n_head"]) != found["n_head"]:
        raise UnknownArchitectureError("its heads share keys, which gpt2 cannot")
    return found | {"layer_norm_epsilon": metadata.need(LAYER_NORM)}


def _gemma(metadata: Metadata, common: dict[str, Any], large: int) -> dict[str, Any]:
    """Settings that Gemma 2 and 3 share.

    llama.cpp knows by the number of layers which size scales queries differently.
    """
    layers, per_head = (
        common["num_hidden_layers"],
        common["hidden_size"] // common["num_attention_heads"],
    )
    told, usual = (
        metadata.take("attention.scale"),
        per_head if layers == large else common["head_dim"],
    )
    return {
        "query_pre_attn_scalar": usual if told is None else round(told**-2),
        "sliding_window": metadata.need_count("attention.sliding_window"),
    }


def _gemma2(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    caps = {name: metadata.take(name, usual) for name, usual in GEMMA2_CAPS.items()}
    metadata.values.setdefault("attention.sliding_window", GEMMA2_WINDOW)
    return _gemma(metadata, common, large=46) | caps | window_pattern(metadata, common, every=2)


def _gemma3(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """Layers that see a window have a base of their own and are never scaled."""
    full = common["rope_parameters"]
    near = {"rope_type": "default", "rope_theta": rope_base(metadata, "rope.freq_base_swa")}
    rope = {"rope_parameters": {"full_attention": full, "sliding_attention": near}}
    return _gemma(metadata, common, large=62) | rope | window_pattern(metadata, common, every=6)


def window_pattern(metadata: Metadata, common: dict[str, Any], every: int) -> dict[str, Any]:
    """Layer types: all layers but every so-many-th see a window, or those that the file lists."""
    told = metadata.take_each("attention.sliding_window_pattern", every)
    layers = range(common["num_hidden_layers"])
    sliding = [
        bool(told[layer]) if isinstance(told, list) else (layer + 1) % told != 0 for layer in layers
    ]
    return {
        "layer_types": ["sliding_attention" if slides else "full_attention" for slides in sliding]
    }


def text_alone(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """A text has one position a token, however many sections of it pictures would have."""
    metadata.take_each("rope.dimension_sections", 0)
    metadata.take("n_deepstack_layers")
    return {}


def _read_by(module: str, name: str) -> Callable[..., dict[str, Any]]:
    """Settings of few architectures; their module is imported when a file of one is read."""

    def read(metadata: Metadata, *common: dict[str, Any]) -> dict[str, Any]:
        return getattr(import_module(f"draftwood.loading.{module}"), name)(metadata, *common)

    return read


def _mixture(name: str) -> Callable[..., dict[str, Any]]:
    return _read_by("gguf_mixtures", name)


def experts_used(metadata: Metadata) -> int:
    """Experts of a row; call it before their number is taken."""
    used, count = metadata.need_count("expert_used_count"), metadata.values.get("expert_count")
    if not isinstance(count, int) or used > count:
        raise ValueError(f"each token goes to {used} of {count} experts")
    return used


def _llama(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """Mixtral's files are of this architecture too."""
    has_experts = metadata.values.get("expert_count")
    return (_mixture("mixtral") if has_experts else _attention_bias)(metadata, common)


def _ministral3(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    rope, growth = common["rope_parameters"], float(metadata.take("attention.temperature_scale", 0))
    if growth and rope["rope_type"] != "yarn":
        raise UnknownArchitectureError("its queries grow behind a length that no scaling tells")
    return {"rope_parameters": rope | {"llama_4_scaling_beta": growth}}


def _seed_oss(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    return _attention_bias(metadata, common) | {
        "attention_out_bias": "blk.0.attn_output.bias" in metadata.shapes
    }


def _command_r(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    return {"logit_scale": metadata.need("logit_scale")}


def _glm4(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in metadata.shapes}


def _exaone4(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """Files without a window have none; in others, layers without one go without positions."""
    window = metadata.take("attention.sliding_window") or None
    if window is None:
        layers = ["full_attention"] * common["num_hidden_layers"]
        return {"sliding_window": None, "layer_types": layers}
    return {"sliding_window": window} | window_pattern(metadata, common, every=4)


def _olmo2(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """OLMo 3's files are of this architecture too; layers with a window scale no positions."""
    window = metadata.take("attention.sliding_window") or None
    if window is None:
        return {}
    full = common["rope_parameters"]
    metadata.values.setdefault("rope.freq_base_swa", full["rope_theta"])
    near = {"rope_type": "default", "rope_theta": rope_base(metadata, "rope.freq_base_swa")}
    return {
        "model_type": "olmo3",
        "sliding_window": window,
        "rope_parameters": {"full_attention": full, "sliding_attention": near},
    } | window_pattern(metadata, common, every=4)


def _phi3(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    rope = common["rope_parameters"]
    before = rope.get("original_max_position_embeddings", common["max_position_embeddings"])
    window = metadata.take("attention.sliding_window") or None
    return {"sliding_window": window, "original_max_position_embeddings": before}


def _stablelm(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """Attention and MLP run side by side where one norm serves both.

    llama.cpp, too, goes by the tensors.
    """
    metadata.take("use_parallel_residual")
    return {
        "use_qkv_bias": "blk.0.attn_q.bias" in metadata.shapes,
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in metadata.shapes,
    }


def _attention_bias(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    return {
        "attention_bias": "blk.0.attn_q.bias" in metadata.shapes,
        "mlp_bias": "blk.0.ffn_up.bias" in metadata.shapes,
    }


def _smollm3(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp, too, knows without a setting that every fourth layer goes without positions."""
    return _attention_bias(metadata, common) | {"no_rope_layer_interval": 4}


def _cohere2(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    window = {"sliding_window": metadata.need_count("attention.sliding_window")}
    return _command_r(metadata, common) | window | window_pattern(metadata, common, every=4)


def _use_bias(metadata: Metadata, common: dict[str, Any]) -> dict[str, Any]:
    return {"use_bias": "blk.0.attn_q.bias" in metadata.shapes}


GEMMA2_WINDOW = 4096
"""Window that llama.cpp takes for files of its first converters, which do not say it."""
GEMMA2_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
ARCHITECTURES = {
    "llama": Architecture("llama", more=_llama, layout="llama"),
    "mistral3": Architecture("ministral3", more=_ministral3, layout="llama"),
    "seed_oss": Architecture("seed_oss", more=_seed_oss),
    "ernie4_5": Architecture("ernie4_5", more=_use_bias),
    "exaone4": Architecture("exaone4", more=_exaone4),
    "glm4": Architecture("glm4", more=_glm4),
    "internlm2": Architecture("llama", more=_attention_bias, layout="llama"),
    "qwen2": Architecture("qwen2"),
    "qwen2vl": Architecture("qwen2", more=text_alone),
    "qwen2moe": Architecture("qwen2_moe", more=_mixture("experts")),
    "qwen3": Architecture("qwen3"),
    "qwen3vl": Architecture("qwen3", more=text_alone),
    "qwen35": Architecture(
        "qwen3_5_text", more=_read_by("gguf_hybrids", "qwen35"), is_native_alone=True
    ),
    "qwen35moe": Architecture(
        "qwen3_5_moe_text", more=_read_by("gguf_hybrid_mixtures", "qwen35moe"), is_native_alone=True
    ),
    "lfm2": Architecture("lfm2", more=_read_by("gguf_hybrids", "lfm2")),
    "lfm2moe": Architecture(
        "lfm2_moe", more=_read_by("gguf_hybrid_mixtures", "lfm2moe"), is_native_alone=True
    ),
    "qwen3next": Architecture(
        "qwen3_next", more=_read_by("gguf_hybrid_mixtures", "qwen3next"), is_native_alone=True
    ),
    "ernie4_5-moe": Architecture("ernie4_5_moe", more=_mixture("ernie4_5"), is_native_alone=True),
    "glm4moe": Architecture("glm4_moe", more=_mixture("glm4moe"), is_native_alone=True),
    "minimax-m2": Architecture("minimax_m2", more=_mixture("minimax_m2"), is_native_alone=True),
    "qwen3moe": Architecture("qwen3_moe", more=_mixture("experts")),
    "olmoe": Architecture("olmoe", more=_mixture("olmoe")),
    "gpt-oss": Architecture("gpt_oss", more=_mixture("gpt_oss")),
    "gemma": Architecture("gemma", layout="gemma2"),
    "gemma2": Architecture("gemma2", more=_gemma2),
    "gemma3": Architecture("gemma3_text", more=_gemma3),
    "gemma4": Architecture(
        "gemma4_text", fields=_read_by("gguf_gemma4", "gemma4"), is_native_alone=True
    ),
    "phi3": Architecture("phi3", more=_phi3),
    "stablelm": Architecture("stablelm", more=_stablelm),
    "smollm3": Architecture("smollm3", more=_smollm3, layout="llama"),
    "olmo2": Architecture("olmo2", more=_olmo2),
    "granite": Architecture("granite", more=_read_by("gguf_granite", "granite"), layout="llama"),
    "granitemoe": Architecture(
        "granitemoe", more=_read_by("gguf_granite", "mixture"), layout="llama", is_native_alone=True
    ),
    "granitehybrid": Architecture(
        "granitemoehybrid",
        fields=_read_by("gguf_granite", "hybrid"),
        layout="llama",
        is_native_alone=True,
    ),
    "command-r": Architecture("cohere", more=_command_r),
    "cohere2": Architecture("cohere2", more=_cohere2),
    "starcoder2": Architecture("starcoder2", more=_use_bias),
    "nemotron": Architecture("nemotron", more=_attention_bias),
    "gpt2": Architecture("gpt2", fields=_gpt2),
}
