"""LoRA adapters, added to the weights of a model of Transformers."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types of weights that no scales belong to."""


@torch.no_grad()
def adapt(hf_model: Any, changes_of: Callable[[Mapping[str, Any]], Any]) -> None:
    """Add an adapter to the weights of a model; see ``Backend.adapt``."""
    modules = {
        name: each
        for name, each in hf_model.named_modules()
        if isinstance(each, (nn.Linear, Conv1D))
    }
    tied = hf_model.get_input_embeddings().weight
    modules = {name: each for name, each in modules.items() if each.weight is not tied}
    changes = changes_of({name: _shape(each) for name, each in modules.items()})
    for name, change in changes.items():
        weight: Any = modules[name].weight
        if weight.dtype not in FLOATS:
            raise ValueError(
                f"the weights of {name} are quantised, and an adapter is added to floats; name the"
                " model in floats"
            )
        added = torch.from_numpy(change.product).to(weight.device)
        added = added.T if isinstance(modules[name], Conv1D) else added
        weight.copy_((weight.float() + added).to(weight.dtype))


def _shape(module: Any) -> tuple[int, ...]:
    """Outputs and inputs of a module."""
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features
    return tuple(reversed(module.weight.shape))
