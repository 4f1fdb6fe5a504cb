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
NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
NEWEST = 3
"""Layers of a target from which a drafter may start."""


def layers_of(recipe: object) -> int | None:
    """Count the newest layers of a target that a recipe is given; None for all."""
    return None if getattr(recipe, "runs_target", False) else NEWEST


def target_weights(
    model: Model, name: str, draft_tokens: Any, newest: int | None = NEWEST
) -> TargetWeights:
    """Sizes, embedding and head of a loaded model, and its newest layers as its name finds them.

    Args:
        name: under which it was loaded.
        draft_tokens: the draft vocabulary, ids as an array or a tensor.
        newest: layers; None for all.

    Raises:
        ValueError: for a model without this ability, or whose layers have another shape.
    """
    require_ability(model, "embeddings_and_head", "training a drafter")
    weights, decoder = model.embeddings_and_head.weights(), decoder_of(name, CANNOT)
    draft_tokens = torch.as_tensor(draft_tokens)
    index = torch.full((model.vocab_size,), -1)
    index[draft_tokens] = torch.arange(len(draft_tokens))
    sizes = decoder.sizes
    return TargetWeights(
        layers=model.layers,
        sizes=HeadSizes(
            hidden=sizes.hidden,
            intermediate_size=sizes.intermediate_size,
            heads=sizes.heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            rope_theta=_theta(decoder.rotaries[0].frequencies),
            epsilon=_rounded(sizes.epsilon),
        ),
        embedding=_tensor(model, weights.embedding) * decoder.scales.embedding,
        head=_tensor(model, weights.head)[draft_tokens].contiguous(),
        draft_tokens=draft_tokens,
        draft_index=index,
        last_layers=_last_layers(decoder.layers[-(newest or len(decoder.layers)) :]),
        final_norm=as_tensor(decoder.norm.weight).float(),
    )


def _tensor(model: Model, weights: Any) -> Tensor:
    """Weights as a tensor of the model's type."""
    made, dtype = as_tensor(weights).detach(), getattr(model, "dtype", None)
    return made.to(getattr(torch, dtype)) if isinstance(dtype, str) else made


def _theta(rotary: Any) -> float:
    """Base of the rotary embedding, from the second of its frequencies."""
    frequencies = as_tensor(rotary).double()
    pairs = len(frequencies)
    return _rounded(float(frequencies[1]) ** -pairs) if pairs > 1 else 10000.0


def _rounded(number: float) -> float:
    """Round off the digits that float32 added."""
    return float(f"{number:.5g}")


def _last_layers(layers: Sequence[Any]) -> list[Mapping[str, Tensor]]:
    """The weights of the last layers by their names in Transformers, without those they lack."""
    found: list[Mapping[str, Tensor]] = []
    for layer in layers:
        matrices = {name: getattr(layer, own) for own, name in MATRICES.items()}
        norms = {name: getattr(layer, own) for own, name in NORMS.items()}
        weights = {name: part.floats for name, part in matrices.items() if part is not None}
        weights |= {name: part.weight for name, part in norms.items() if part is not None}
        found.append({f"{name}.weight": as_tensor(each).float() for name, each in weights.items()})
    return found
