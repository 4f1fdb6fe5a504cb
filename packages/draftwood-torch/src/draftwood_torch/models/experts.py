"""Mixtures of experts as Transformers has them: the matrices of all experts of a layer lie in two
tensors, one of which holds gates together with what they gate.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

GATE_UP, DOWN = "gate_up_proj", "down_proj"


def is_mixture(module: nn.Module) -> bool:
    """True if a module holds the matrices of experts, unquantised."""
    tensor = getattr(module, GATE_UP, None)
    return isinstance(tensor, Tensor) and tensor.ndim == 3


def mixtures(model: nn.Module) -> dict[str, Any]:
    """The modules of experts that have weights of their own, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if name.endswith(".experts") and is_mixture(module)
    }


def parts(experts: Any) -> dict[str, Float[Tensor, "experts outputs ..."]]:
    """Weights and biases of gate, up and down, as ``gate.weight`` and ``gate.bias``."""
    gate, up = split(experts, experts.gate_up_proj.detach())
    down = _outputs_first(experts, experts.down_proj.detach())
    found = {"gate.weight": gate, "up.weight": up, "down.weight": down}
    if getattr(experts, f"{DOWN}_bias", None) is not None:
        found["gate.bias"], found["up.bias"] = split(experts, experts.gate_up_proj_bias.detach())
        found["down.bias"] = experts.down_proj_bias.detach()
    return found


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


def _outputs_first(experts: Any, weights: Tensor) -> Tensor:
    """From the module's layout to [experts outputs inputs], or back."""
    return weights.transpose(1, 2) if experts.is_transposed else weights
