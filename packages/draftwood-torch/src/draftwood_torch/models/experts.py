"""Mixtures of experts as Transformers has them: the matrices of all experts of a layer lie in two
tensors, one of which holds gates together with what they gate.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.native.matrix import Weights

PARTS = ("gate", "up", "down")
"""Matrices of an expert."""
BLOCKS = "blocks"
"""Attribute of modules whose weights lie in a file; they have no ``weight``.

Of a GGUF file these are its blocks, of a file of packed matrices only their shape, on PyTorch's
``meta`` device. Modules of experts have a dictionary there: for each of ``PARTS`` the matrices
[outputs inputs] of all experts below each other.
"""
GATE_UP, DOWN = "gate_up_proj", "down_proj"
Bias = Float[Tensor, " outputs"] | None


def is_mixture(module: nn.Module) -> bool:
    """True if a module holds the matrices of experts, unquantised."""
    return hasattr(module, BLOCKS) or _has_weights(module)


def mixtures(model: nn.Module) -> dict[str, Any]:
    """The modules of experts that have weights of their own, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if name.endswith(".experts") and _has_weights(module)
    }


def _has_weights(module: nn.Module) -> bool:
    tensor = getattr(module, GATE_UP, None)
    return isinstance(tensor, Tensor) and tensor.ndim == 3


def stacked(experts: Any) -> dict[str, Float[Tensor, "experts outputs inputs"]]:
    """The weights of a module of experts, for each of ``PARTS``."""
    down = experts.down_proj.detach()
    gate, up = split(experts, experts.gate_up_proj.detach())
    return {"gate": gate, "up": up, "down": _outputs_first(experts, down)}


def split(
    experts: Any, gate_up: Float[Tensor, "experts ..."]
) -> tuple[Float[Tensor, "experts outputs ..."], Float[Tensor, "experts outputs ..."]]:
    """Gates, and what they gate, of weights or biases in the module's layout."""
    if gate_up.ndim == 3:
        gate_up = _outputs_first(experts, gate_up)
    if experts.is_concatenated:
        gate, up = gate_up.chunk(2, dim=1)
        return gate, up
    return gate_up[:, ::2], gate_up[:, 1::2]


def join(experts: Any, parts: Mapping[str, Float[Tensor, "experts outputs ..."]]) -> Tensor:
    """The reverse of ``split``; also of what is ``down`` alone."""
    if "down" in parts:
        joined = parts["down"]
    elif experts.is_concatenated:
        joined = torch.cat([parts["gate"], parts["up"]], dim=1)
    else:
        joined = torch.stack([parts["gate"], parts["up"]], dim=2).flatten(1, 2)
    return _outputs_first(experts, joined).contiguous() if joined.ndim == 3 else joined


def matrices(experts: Any, count: int) -> list[list[tuple[Weights, Bias]]]:
    """Weights and bias of gate, up and down, for each of so many experts."""
    blocks: Mapping[str, Weights] | None = getattr(experts, BLOCKS, None)
    weights = stacked(experts) if blocks is None else blocks
    biases: dict[str, Tensor] = {}
    if getattr(experts, f"{DOWN}_bias", None) is not None:
        biases["gate"], biases["up"] = split(experts, experts.gate_up_proj_bias.detach())
        biases["down"] = experts.down_proj_bias.detach()
    return [
        [
            (_of_expert(weights[part], expert, count), biases[part][expert] if biases else None)
            for part in PARTS
        ]
        for expert in range(count)
    ]


def _of_expert(weights: Weights, expert: int, count: int) -> Weights:
    """One of several that lie below each other, or behind each other."""
    if isinstance(weights, Tensor) and weights.ndim == 3:
        return weights[expert]
    outputs = weights.shape[0] // count
    return weights[expert * outputs : (expert + 1) * outputs]


def _outputs_first(experts: Any, weights: Tensor) -> Tensor:
    """From the module's layout to [experts outputs inputs], or back."""
    return weights.transpose(1, 2) if experts.is_transposed else weights
