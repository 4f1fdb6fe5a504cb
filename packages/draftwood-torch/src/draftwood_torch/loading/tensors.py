"""Tensors of a model of Transformers as a decoder is described from them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.arrays import bits_of
from draftwood_torch.models import experts


class ModelTensors:
    """Gives the tensors of a model by name, as ``describe`` asks for them; None where absent."""

    def __init__(self, model: Any) -> None:
        self.state, self.mixtures = model.state_dict(), experts.mixtures(model)

    def __call__(self, name: str) -> np.ndarray | None:
        at, _, rest = name.partition(".experts.")
        if rest:
            return self._of_experts(self.mixtures[f"{at}.experts"], *rest.split("."))
        return array_of(self.state[name]) if name in self.state else None

    def _of_experts(self, module: Any, part: str, kind: str) -> np.ndarray:
        if kind == "weight":
            return array_of(experts.stacked(module)[part])
        if part == "down":
            return array_of(module.down_proj_bias)
        return array_of(experts.split(module, module.gate_up_proj_bias)[part == "up"])


def array_of(tensor: Tensor) -> np.ndarray:
    """A tensor as an array that shares its memory; of bfloat16 its bits."""
    tensor = tensor.detach()
    return bits_of(tensor) if tensor.dtype == torch.bfloat16 else tensor.numpy()
