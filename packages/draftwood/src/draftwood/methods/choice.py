"""The method for a draft model: the one that its costs and measured acceptance make fastest."""

from collections.abc import Sequence

from draftwood.costs.budget import Seconds
from draftwood.costs.calibration import Calibration
from draftwood.drafters.draft_model import DraftModel
from draftwood.methods.composition import MethodSpec
from draftwood.methods.drafts import PUBLISHED
from draftwood.methods.listings import listings
from draftwood.methods.registry import recipe
from draftwood.methods.trees import rank_paths
from draftwood.shapes import Sequoia, Shape, Widths

ACCEPTANCE = Sequoia.acceptance
"""Probability that the b-th child is the accepted one, where nobody measured it."""


def fastest(
    target: Calibration, draft: Calibration | None, measure: bool = True, ahead: bool = False
) -> str:
    """The method that is expected to write most tokens a second with a draft model.

    What ``draftwood tune`` expects, by the acceptance that it measured with this draft model, comes
    before what usual acceptance lets expect.

    Args:
        measure: False does without curves that would have to be measured first.
        ahead: True asks for a method that can draft while the target runs.
    """
    known = listings()
    fit = {name for name, each in known.items() if each.lossless and ahead <= each.drafts_ahead}
    stored = {} if draft is None else target.speed_ups(draft)
    tuned = {name: found for name, found in stored.items() if name in fit}
    costs = [each and (each.followed() if measure else each.known()) for each in (target, draft)]
    if costs[0] is None or costs[1] is None:
        return max(tuned, key=lambda name: tuned[name], default=PUBLISHED)
    expected = estimates(costs[0], costs[1]) | tuned
    fitting = [name for name in expected if name in fit]  # in the order of recipes, for ties
    return max(fitting, key=lambda name: expected[name], default=PUBLISHED)


def estimates(
    target: Seconds, draft: Seconds, acceptance: Sequence[float] = ACCEPTANCE
) -> dict[str, float]:
    """Speed-up over plain decoding by method, for lossless ones with trees of a fixed form.

    Args:
        target: seconds of a forward pass by nodes.
        draft: likewise, of the draft model.
        acceptance: probability of each rank of child to be the accepted one, its parent reached.
    """
    found, fixed = {}, {Widths.name, Sequoia.name}
    for name, each in listings().items():
        # other packages' parts are not imported
        is_one = each.drafter == DraftModel.name and each.shape in fixed and each.lossless
        if is_one and (paths := _paths(recipe(name))):
            found[name] = speed_up(paths, target, draft, acceptance)
    return found


def speed_up(
    paths: Sequence[Sequence[int]], target: Seconds, draft: Seconds, acceptance: Sequence[float]
) -> float:
    """Speed-up over plain decoding of a tree, given by the ranks on the way to each node.

    The draft model runs once for each level, over the level above it.
    """
    tokens, widths = 1.0, [1, *[0] * max(map(len, paths))]
    for path in paths:
        chance = 1.0
        for rank in path:
            chance *= acceptance[rank]
        tokens += chance
        widths[len(path)] += 1
    seconds = target(1 + len(paths)) + sum(draft(width) for width in widths[:-1])
    return tokens * target(1) / seconds


def _paths(of: MethodSpec) -> Sequence[Sequence[int]]:
    """Rank paths of a tree whose siblings are drawn without replacement; empty for others."""
    shape: Shape | None = of.shape
    if isinstance(shape, Sequoia):
        return shape.paths
    if not isinstance(shape, Widths) or (shape.draw != "distinct" and max(shape.widths) > 1):
        return ()
    return rank_paths(shape.widths)
