"""Shallow copies of Transformers models with some of their modules left out or replaced."""

import copy
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def list_of_layers(hf_model: "PreTrainedModel") -> tuple[str, nn.ModuleList] | None:
    """The decoder's list of layers and its name there; None where it has none."""
    children = hf_model.get_decoder().named_children()
    return next(
        ((name, child) for name, child in children if isinstance(child, nn.ModuleList)), None
    )


def without_layers(hf_model: "PreTrainedModel", skipped: frozenset[int]) -> "PreTrainedModel":
    """A shallow copy of the model whose decoder leaves some layers out.

    Weights and layer numbers stay shared.
    """
    decoder, found = hf_model.get_decoder(), list_of_layers(hf_model)
    assert found is not None  # or it lacks the ability
    name, layers = found
    kept = [index for index in range(len(layers)) if index not in skipped]
    smaller = _shallow(decoder)
    smaller._modules[name] = nn.ModuleList([layers[index] for index in kept])
    smaller.config = copy.copy(decoder.config)  # type: ignore[assignment]
    smaller.config.num_hidden_layers = len(kept)
    kinds = getattr(decoder.config, "layer_types", None)
    if kinds is not None:
        smaller.config.layer_types = [kinds[index] for index in kept]
    return replaced(hf_model, decoder, smaller)  # type: ignore[return-value]


def _shallow(module: nn.Module) -> nn.Module:
    double = copy.copy(module)
    double._modules = dict(module._modules)
    return double


def replaced(module: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """A shallow copy of ``module`` with the submodule ``old`` replaced by ``new``, at any depth."""
    if module is old:
        return new
    double = _shallow(module)
    for name, child in module._modules.items():
        if child is not None and any(part is old for part in child.modules()):
            double._modules[name] = replaced(child, old, new)
    return double
