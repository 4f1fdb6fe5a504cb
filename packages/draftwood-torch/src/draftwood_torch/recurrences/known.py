"""Layers of Transformers that are recurrences, and how to run them over trees."""

from typing import Any

from torch import nn

from draftwood_torch.recurrences.base import Recurrence
from draftwood_torch.recurrences.gated_delta import GatedDeltaRule
from draftwood_torch.recurrences.short_convolution import ShortConvolution
from draftwood_torch.recurrences.ssd import StateSpaceDuality

RECURRENCES: dict[str, type[Recurrence]] = {
    "Lfm2ShortConv": ShortConvolution,
    "Lfm2MoeShortConv": ShortConvolution,
    "Mamba2Mixer": StateSpaceDuality,
    "BambaMixer": StateSpaceDuality,
    "Zamba2MambaMixer": StateSpaceDuality,
    "FalconH1Mixer": StateSpaceDuality,
    "GraniteMoeHybridMambaLayer": StateSpaceDuality,
    "NemotronHMamba2Mixer": StateSpaceDuality,
    "Qwen3NextGatedDeltaNet": GatedDeltaRule,
    "Qwen3_5GatedDeltaNet": GatedDeltaRule,
    "Qwen3_5MoeGatedDeltaNet": GatedDeltaRule,
}
"""By the name of the class in Transformers."""


def recurrent_layers(hf_model: nn.Module) -> list[nn.Module]:
    """The layers of a model that keep a running state which trees can share."""
    return [module for module in hf_model.modules() if type(module).__name__ in RECURRENCES]


def over_trees(layer: nn.Module, number: int) -> Recurrence:
    """A recurrence, run over trees.

    Args:
        number: of the recurrence in its model.
    """
    return RECURRENCES[type(layer).__name__](layer, number)


def unknown_recurrences(hf_model: nn.Module) -> list[str]:
    """Classes of layers that keep a running state in another way."""
    classes = {type(module) for module in hf_model.modules() if _is_mixer(module)}
    return sorted(kind.__name__ for kind in classes if kind.__name__ not in RECURRENCES)


def _is_mixer(module: Any) -> bool:
    """True if a layer mixes tokens otherwise than by attention: it convolves, or has states."""
    numbered = hasattr(module, "layer_idx") or hasattr(module, "layer_id")
    if not numbered:
        return False
    own = {name for name, _ in module.named_parameters(recurse=False)}
    convolves = any(isinstance(child, nn.Conv1d) for child in module.children())
    return convolves or bool(own & {"A_log", "time_decay", "dt_bias", "A"})
