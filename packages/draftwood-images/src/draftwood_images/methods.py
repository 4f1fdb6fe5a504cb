"""Methods as pictures use them: windows, starts and groups, and what passes cost."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from draftwood import methods
from draftwood.costs.budget import Budget
from draftwood.costs.curve import measure
from draftwood.drafters import JacobiSampled
from draftwood.engine import Method
from draftwood.methods.listings import CommandMethod
from draftwood.verifiers import Grouped
from draftwood_images.drawing import Easel
from draftwood_images.drawing_model import DrawingModel
from draftwood_images.starts import PictureStart, Start

SIZES = (1, 2, 4, 8, 12, 17, 24, 34)
"""Nodes of the passes that are timed: guided ones of up to 16 draft tokens run 34 rows."""
SECONDS = 1.0
"""Most time for timing them."""
LISTED = [
    CommandMethod(
        each.name,
        f"draftwood draw NAME --method {each.name}{' --inexact' * (not each.lossless)}",
        each.summary,
        each.source,
        each.promise,
    )
    for each in map(methods.listing, ("raced-jacobi", "sjd", "gsd"))
]
"""Methods that are meant for pictures, as ``draftwood methods`` lists them."""

Costs = Callable[[int], float]


@dataclass(frozen=True)
class WindowKnobs:
    """Knobs of methods that draft from the last pass's rows.

    Attributes:
        window: most draft tokens of a pass (W).
        start: of a place that no pass has seen.
        group: tokens of a group (G), for ``gsd``.
        delta: probability by which they differ at most.
        distance: squared distance (d) in the codebook at most; None looks at probabilities alone.
        whole: True drafts the whole window whether it pays or not.
    """

    window: int = 16
    start: Start = "left"
    group: int = 10
    delta: float = 0.15
    distance: float | None = None
    whole: bool = False


def costs_of(easel: Easel) -> Costs:
    """Measure the seconds of a pass by nodes; a guided one runs each node twice."""
    drawing = easel.drawing
    curve = measure(drawing.model, SIZES, drawing.layout.length // 2, SECONDS)
    return curve if easel.rule.guidance == 1.0 else lambda nodes: curve(2 * nodes)


def require_method(name: str, inexact: bool) -> None:
    """Refuse a method that pictures do not have, before anything is loaded.

    Raises:
        ValueError: for an unknown name, one that needs other weights or files, and a lossy one
            without ``inexact``.
    """
    found = methods.listing(name)
    lacking = methods.lacking(found, ())
    if lacking is not None:
        raise ValueError(
            f"method {name!r} needs a {lacking}, which pictures have not; take raced-jacobi, sjd or"
            " auto"
        )
    if found.promise == "trades quality" and not inexact:
        raise ValueError(
            f"method {name!r} changes what the model would draw; --inexact allows that"
        )


def picture_method(
    name: str,
    easel: Easel,
    knobs: WindowKnobs | None = None,
    costs: Costs | None = None,
) -> Method:
    """Build a method for an easel's pictures.

    Args:
        name: of the method.
        easel: with the model.
        knobs: of windows; None takes the usual ones.
        costs: seconds of a pass by nodes; None takes what is assumed of any machine.

    Raises:
        ValueError: for a method that this model cannot have.
    """
    knobs = knobs or WindowKnobs()
    drawing = easel.drawing
    built = methods.build(name, easel.model, curve=costs)
    drafter, verifier = built.drafter, built.verifier
    if isinstance(drafter, JacobiSampled):
        budget = None if knobs.whole else Budget.of(costs)
        start = PictureStart(drawing.layout, knobs.start)
        drafter = replace(drafter, window=knobs.window, start_row=start, budget=budget)
    if isinstance(verifier, Grouped):
        verifier = _grouped(verifier, knobs, drawing)
    return Method(drafter, verifier, built.name, built.otherwise)


def _grouped(rule: Grouped, knobs: WindowKnobs, drawing: DrawingModel) -> Grouped:
    rule = replace(rule, group=knobs.group, delta=knobs.delta)
    if knobs.distance is None:
        return rule
    vectors = drawing.vectors_by_token()
    if vectors is None:
        raise ValueError(f"{drawing.name} tells no vectors of its codes; leave the distance out")
    return replace(rule, vectors=vectors, distance=knobs.distance)
