"""Tensors of a model of Transformers as a decoder is described from them."""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.arrays import bits_of
from draftwood_torch.models import experts


class ModelState:
    """Gives the tensors of a model by name, as ``describe`` asks for them; None where absent.

    Experts are asked for part by part, as ``model.layers.0.mlp.experts.gate.weight``.
    """

    def __init__(self, model: Any) -> None:
        self.state, self.mixtures = model.state_dict(), experts.mixtures(model)

    def __call__(self, name: str) -> Tensor | None:
        at, _, rest = name.partition(".experts.")
        if rest:
            return self._of_experts(self.mixtures[f"{at}.experts"], *rest.split("."))
        return self.state.get(name)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors."""
        found = {name: tuple(tensor.shape) for name, tensor in self.state.items()}
        for name, module in self.mixtures.items():
            for whole in (experts.GATE_UP, experts.DOWN):
                del found[f"{name}.{whole}"]
                found.pop(f"{name}.{whole}_bias", None)
            for part, tensors in experts.parts(module).items():
                found[f"{name}.{part}"] = tuple(tensors.shape)
        return found

    def _of_experts(self, module: Any, part: str, kind: str) -> Tensor | None:
        return experts.parts(module).get(f"{part}.{kind}")


class ModelArrays(ModelState):
    """The same as arrays that share the tensors' memory; of bfloat16 its bits."""

    def __call__(self, name: str) -> Any:
        tensor = super().__call__(name)
        return None if tensor is None else _array_of(tensor)


def _array_of(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach()
    return bits_of(tensor) if tensor.dtype == torch.bfloat16 else tensor.numpy()
