"""Read a target for recipes: sizes, embedding and output head, and the last layers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from draftwood.loading.weights import decoder_of
from draftwood.models.model import Model
from draftwood.models.requirements import require_ability
from draftwood.native.formats import HeadSizes
from draftwood_torch.tensors import as_tensor
from draftwood_train.recipe import TargetWeights

CANNOT = "drafters cannot be trained for"
MATRICES = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
OF_NETWORK = {own: name for own, name in MATRICES.items() if name.startswith("mlp.")}
NORMS = {
    "attention_norm": "input_layernorm",
    "key_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
}
BIASED = ("key", "value")
"""Matrices whose biases are known too."""
NEWEST = 3
"""Layers of a target that a recipe is given at least."""


def layers_of(recipe: object) -> int | None:
    """Count the newest layers of a target that a recipe is given; None for all."""
    if getattr(recipe, "runs_target", False):
        return None
    return max(NEWEST, getattr(recipe, "newest", 0))


def target_weights(
    model: Model, name: str, draft_tokens: Any, newest: int | None = NEWEST
) -> TargetWeights:
    """Sizes, embedding and head of a loaded model, and its newest layers as its name finds them.

    Args:
        name: under which it was loaded.
        draft_tokens: the draft vocabulary, ids as an array or a tensor.
        newest: layers; None for all.

    Raises:
        ValueError: for a model without this ability, whose layers have another shape, or whose
            output head does more than multiply and scale.
    """
    require_ability(model, "embeddings_and_head", "training a drafter")
    weights, decoder = model.embeddings_and_head.weights(), decoder_of(name, CANNOT)
    _require_plain_head(decoder, name)
    draft_tokens = torch.as_tensor(draft_tokens)
    index = torch.full((model.vocab_size,), -1)
    index[draft_tokens] = torch.arange(len(draft_tokens))
    sizes, last = decoder.sizes, decoder.layers[-(newest or len(decoder.layers)) :]
    return TargetWeights(
        layers=model.layers,
        sizes=HeadSizes(
            hidden=sizes.hidden,
            intermediate_size=sizes.intermediate_size,
            heads=sizes.heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            rope_theta=_base(decoder),
            epsilon=_rounded(sizes.epsilon),
        ),
        embedding=_tensor(model, weights.embedding) * decoder.scales.embedding,
        head=_tensor(model, weights.head)[draft_tokens] * decoder.scales.logits,
        draft_tokens=draft_tokens,
        draft_index=index,
        last_layers=_last_layers(last),
        other_keys=[_other_keys(decoder, layer) for layer in last],
        final_norm=as_tensor(decoder.norm.weight).float(),
    )


def _tensor(model: Model, weights: Any) -> Tensor:
    """Weights as a tensor of the model's type."""
    made, dtype = as_tensor(weights).detach(), getattr(model, "dtype", None)
    return made.to(getattr(torch, dtype)) if isinstance(dtype, str) else made


def _base(decoder: Any) -> float:
    """Base of the first rotary embedding, from the second of its frequencies."""
    if not decoder.rotaries:
        return 10000.0
    frequencies = as_tensor(decoder.rotaries[0].frequencies).double()
    pairs = len(frequencies)
    return _rounded(float(frequencies[1]) ** -pairs) if pairs > 1 else 10000.0


def _rounded(number: float) -> float:
    """Round off the digits that float32 added."""
    return float(f"{number:.5g}")


def _require_plain_head(decoder: Any, name: str) -> None:
    """Raise ValueError for an output head that adds a bias or caps logits.

    Drafters share its rows alone.
    """
    does = "adds a bias to" if decoder.lm_head.bias is not None else "caps"
    if decoder.lm_head.bias is not None or decoder.scales.logit_cap is not None:
        raise ValueError(
            f"{CANNOT} {name}: its output head {does} logits, and drafters have its weights alone;"
            " take a method without a trained drafter, such as --method lookup"
        )


def _other_keys(decoder: Any, layer: Any) -> str | None:
    """Say what a layer's keys have that those of LongSpec's training have not; None for nothing."""
    sizes = decoder.sizes
    if sizes.is_layer_norm:
        return "norms that take off the mean"
    if layer.key_norm is not None and sizes.norms_whole_vectors:
        return "norms across all heads"
    if layer.rotary is None:
        return "no rotary embedding"
    rotary = decoder.rotaries[layer.rotary]
    found = as_tensor(rotary.frequencies).double().cpu()
    powers = torch.arange(0, sizes.head_dim, 2).double() / sizes.head_dim
    plain = _base(decoder) ** -powers
    is_plain = len(found) == len(plain) and torch.allclose(found, plain, rtol=1e-3, atol=0)
    return None if is_plain and rotary.scale == 1 else "rotary embeddings of another form"


def _last_layers(layers: Sequence[Any]) -> list[Mapping[str, Tensor]]:
    """The weights of the last layers by their names in Transformers, without those they lack."""
    found: list[Mapping[str, Tensor]] = []
    for layer in layers:
        # what stands in the place of attention is no head's
        owned = MATRICES if layer.recurrence is None else OF_NETWORK
        matrices = {name: getattr(layer, own) for own, name in owned.items()}
        norms = {name: getattr(layer, own) for own, name in NORMS.items()}
        weights = {name: part.floats for name, part in matrices.items() if part is not None}
        weights |= {name: part.weight for name, part in norms.items() if part is not None}
        named = {f"{name}.weight": each for name, each in weights.items()}
        parts = {own: getattr(layer, own) for own in BIASED if own in owned}
        biases = {f"{MATRICES[own]}.bias": part.bias for own, part in parts.items() if part}
        named |= {name: each for name, each in biases.items() if each is not None}
        found.append({name: as_tensor(each).float() for name, each in named.items()})
    return found
