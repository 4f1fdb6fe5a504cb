"""First weights of a head, taken from its target where they fit."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from draftwood_train.recipe import TargetWeights


@torch.no_grad()
def copy_last_layers(
    head: Any, layers: Sequence[nn.Module] | nn.ModuleList, target: TargetWeights
) -> None:
    """Give a head the target's final norm, and these layers the weights of its last ones."""
    if target.final_norm is not None:
        head.norm.weight.copy_(target.final_norm)
    for layer, known in zip(reversed(layers), reversed(target.last_layers), strict=False):
        named = {name: part for name, part in layer.named_parameters() if name in known}
        given = {name: known[name] for name in named if known[name].shape == named[name].shape}
        layer.load_state_dict(given, strict=False)


@torch.no_grad()
def add_nothing(layers: Iterable[Any]) -> None:
    """Let layers add nothing before they have learnt."""
    for layer in layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
