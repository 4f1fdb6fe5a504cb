"""Prepare a drafter that was read for more training."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import nn

from draftwood.heads.trained import TrainedHead
from draftwood_torch.tensors import as_tensor
from draftwood_train.recipe import DrafterRecipe, TargetWeights

NO_OPTION = {
    "norms_features": "joins states that are not normed, as no recipe here does; train without"
    " --from",
    "window": "sees all rows, as no recipe here does; train without --from",
    "own_head": "has output rows of its own, and training reads the target's; train without --from",
    "norm_before_residual": "adds to normed states, as no recipe here does; train without --from",
    "acceptance": "has an acceptance head beside its draft LM; go on with 'draftwood train"
    " acceptance', or from the draft LM alone",
}
"""Settings that no option of a recipe asks for or leaves out."""


def going_on(
    recipe: DrafterRecipe, start: TrainedHead, folder: Path, target: TargetWeights
) -> nn.Module:
    """A drafter of this recipe with the weights of another.

    It keeps the parts that the recipe says a head may gain, as they are built.

    Args:
        folder: of the other, for errors.

    Raises:
        ValueError: for a drafter of another kind, or with other parts or sizes.
    """
    new, config = recipe.build(target), start.config
    wanted: Any = new.config
    if config.kind != wanted.kind:
        raise ValueError(
            f"{folder} holds a drafter of the kind {config.kind}, not {wanted.kind}; go on with the"
            " recipe that trained it, or train without --from"
        )
    gains: frozenset[str] = getattr(recipe, "gains", frozenset())
    weights = {name: as_tensor(each) for name, each in start.weights.items()}
    for each in fields(config):
        own, asked = getattr(config, each.name), getattr(wanted, each.name, None)
        gained = each.name in gains and weights.keys() <= new.state_dict().keys()
        if own == asked or gained:
            continue
        unlike = own is None if each.name == "window" else bool(own) != bool(asked)
        if unlike and each.name in NO_OPTION:
            raise ValueError(f"the drafter in {folder} {NO_OPTION[each.name]}")
        raise ValueError(
            f"{folder} holds a drafter with {each.name} {own}, not {asked}; give the recipe and"
            " the options that it was trained with"
        )
    new.load_state_dict({**new.state_dict(), **weights})
    return new
