"""Shallow copies of Transformers models with some of their modules left out or replaced."""

import copy
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

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
    # kinds of layers, rotary bases and whatever else a decoder looks up by a layer's place
    for told in (smaller.config, smaller):
        for key, each in list(vars(told).items()):
            if isinstance(each, list) and len(each) == len(layers):
                setattr(told, key, [each[index] for index in kept])
    return replaced(hf_model, decoder, smaller)  # type: ignore[return-value]


class GoingOn(nn.Module):
    """A decoder layer that may read what it is given beforehand, in the place of what comes.

    Attributes:
        stream: what it reads: [sequences nodes dim]; None reads what comes.
        read, gave: what it read and gave last.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.forget()

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.read = hidden_states if self.stream is None else self.stream
        given = self.layer(self.read, *args, **kwargs)
        self.gave = given if isinstance(given, Tensor) else given[0]
        return given

    def forget(self) -> None:
        self.stream: Tensor | None = None
        self.read: Tensor | None = None
        self.gave: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        """Decoders look at attributes of their layers."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)


def going_on(
    hf_model: "PreTrainedModel", skipped: frozenset[int]
) -> tuple["PreTrainedModel", dict[int, GoingOn]]:
    """A shallow copy of the model without some layers, and its layers by their numbers."""
    smaller = without_layers(hf_model, skipped)
    found = list_of_layers(smaller)
    assert found is not None  # or it lacks the ability
    layers = found[1]
    kept = sorted(frozenset(range(len(layers) + len(skipped))) - skipped)
    named = {index: GoingOn(layer) for index, layer in zip(kept, layers, strict=True)}
    for place, layer in enumerate(named.values()):
        layers[place] = layer
    return smaller, named


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
