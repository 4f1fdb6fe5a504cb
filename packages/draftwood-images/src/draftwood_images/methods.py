"""Methods as pictures use them: windows, starts and groups, and what passes cost."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from draftwood import methods
from draftwood.costs.budget import Budget
from draftwood.costs.curve import Curve, measure
from draftwood.drafters import Drafter, JacobiSampled
from draftwood.drafters.resources import Later
from draftwood.engine import Method
from draftwood.methods.listings import CommandMethod
from draftwood.stats import Step
from draftwood.verifiers import Grouped
from draftwood_images.drawing import Easel
from draftwood_images.drawing_model import DrawingModel
from draftwood_images.starts import PictureStart, Start

SIZES = (1, 2, 4, 8, 12, 17, 24, 34)
"""Nodes of the passes that are timed: guided ones of up to 16 draft tokens run 34 rows."""
SECONDS = 1.0
"""Most time for timing them."""
WINDOWS, PIECE, ROUNDS = (1, 2, 4, 8, 16), 48, 3
"""Draft tokens of windows that are timed, tokens of the pieces that are drawn for it, and how often
each is.
"""
OF_PICTURES = ("raced-jacobi", "sjd", "gsd")
LISTED = [
    CommandMethod(
        each.name,
        f"draftwood draw NAME --method {each.name}{' --inexact' * (not each.lossless)}",
        each.summary,
        each.source,
        each.promise,
    )
    for each in map(methods.listing, OF_PICTURES)
]
"""Methods that are meant for pictures, as ``draftwood methods`` lists them."""

MARGIN = 1.1
"""Factor by which drafts must pay, as what is measured once is never quite what holds later."""

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


class MachineCosts:
    """Costs of drawing on this machine, measured where a method asks for them.

    Args:
        easel: pictures of it are timed.
    """

    def __init__(self, easel: Easel) -> None:
        self.easel = easel

    @cached_property
    def passes(self) -> Costs:
        """Seconds of a pass by nodes; a guided one runs each node twice."""
        drawing = self.easel.drawing
        curve = measure(drawing.model, SIZES, max(1, drawing.layout.length // 2), SECONDS)
        return curve if self.easel.rule.guidance == 1.0 else lambda nodes: curve(2 * nodes)

    @cached_property
    def windows(self) -> "WindowCosts":
        """Costs of windows: pieces of a picture are drawn with several sizes.

        A picture of one token leaves nothing to draft, and no pass to time.
        """
        if self.easel.drawing.layout.length < 2:
            return WindowCosts(float, 0.0, pays=False)
        ways = {1: picture_method("plain", self.easel)}
        for size in WINDOWS:
            knobs = WindowKnobs(window=size, whole=True)
            ways[1 + size] = picture_method("raced-jacobi", self.easel, knobs)
        for method in ways.values():
            self._timed(method, 2)  # warm
        rounds = [[self._timed(method, PIECE) for method in ways.values()] for _ in range(ROUNDS)]
        # the least, since nothing but other work makes a step longer
        least = [min(each.seconds for each in timed) for timed in zip(*rounds, strict=True)]
        least = [least[0], *(MARGIN * each for each in least[1:])]
        alone, *drafting = (
            took / max(1, each.tokens) for took, each in zip(least, rounds[0], strict=True)
        )
        shares = [each.kept for each in rounds[0][1:]]
        return WindowCosts(
            Curve.fit(dict(zip(ways, least, strict=True))),
            sum(shares) / len(shares),
            min(drafting) < alone,
        )

    def _timed(self, method: Method, tokens: int) -> "_Piece":
        begun, ended, steps = 0.0, 0.0, list[Step]()
        for step in self.easel.piece(method, min(tokens, self.easel.drawing.layout.length)):
            ended = time.perf_counter()
            begun = begun or ended
            steps.append(step)
        drafted = [step for step in steps if step.drafted]
        kept = sum(step.accepted > 0 for step in drafted) / max(1, len(drafted))
        count = max(1, len(steps) - 1)
        made = sum(len(step.tokens) for step in steps[1:])
        return _Piece((ended - begun) / count, made / count, kept)


@dataclass(frozen=True)
class _Piece:
    """Time and tokens of a piece of a picture, its first step left out.

    Attributes:
        seconds, tokens: of a step.
        kept: share of first draft tokens that were kept.
    """

    seconds: float
    tokens: float
    kept: float


@dataclass(frozen=True, eq=False)
class WindowCosts:
    """Costs of windows, and the share that they keep.

    Attributes:
        seconds: of a step by nodes, drafting and verifying included; of one node without drafts.
        kept: share of first draft tokens that were kept.
        pays: whether any window drew faster than none did.
    """

    seconds: Costs
    kept: float
    pays: bool = True


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


def require_read(knobs: Collection[str], names: Sequence[str]) -> None:
    """Refuse knobs that none of these methods reads, before anything is loaded.

    Args:
        knobs: fields of ``WindowKnobs``.
        names: of methods.

    Raises:
        ValueError: for one of them, with the methods that it is for.
    """
    for knob in knobs:
        if not any(_reads(name, knob) for name in names):
            fitting = " or ".join(each for each in OF_PICTURES if _reads(each, knob))
            raise ValueError(f"--{knob} is for {fitting}, not {', '.join(names)}; leave it out")


def _reads(name: str, knob: str) -> bool:
    """True if a method drafts otherwise with another value of a knob."""
    found = methods.recipe(name)
    if knob in ("group", "delta", "distance"):
        return isinstance(found.verifier, Grouped)
    return issubclass(found.drafter, JacobiSampled)


def picture_method(
    name: str,
    easel: Easel,
    knobs: WindowKnobs | None = None,
    costs: MachineCosts | None = None,
) -> Method:
    """Build a method for an easel's pictures.

    Args:
        name: of the method.
        easel: with the model.
        knobs: of windows; None takes the usual ones.
        costs: on this machine; None takes what is assumed of any. Where no window pays here, the
            method draws plainly.

    Raises:
        ValueError: for a method that this model cannot have.
    """
    knobs = knobs or WindowKnobs()
    has_window = issubclass(methods.recipe(name).drafter, JacobiSampled)
    curve = None if costs is None or has_window else Later(lambda: costs.passes)
    built = methods.build(name, easel.model, curve=curve)
    drafter, verifier = built.drafter, built.verifier
    if isinstance(drafter, JacobiSampled):
        start = PictureStart(easel.drawing.layout, knobs.start)
        drafter = replace(drafter, window=knobs.window, start_row=start)
        drafter = _paying(drafter, None if knobs.whole else costs, knobs)
    if isinstance(verifier, Grouped):
        verifier = _grouped(verifier, knobs, easel.drawing)
    if has_window and costs is not None and not knobs.whole and not costs.windows.pays:
        plain = methods.build("plain", easel.model)
        drafter, verifier = plain.drafter, plain.verifier
    return Method(drafter, verifier, built.name, built.otherwise)


def _paying(drafter: JacobiSampled, costs: MachineCosts | None, knobs: WindowKnobs) -> Drafter:
    """Draft as much as pays; without costs as is assumed to."""
    if costs is None:
        return replace(drafter, budget=None if knobs.whole else Budget())
    known = costs.windows
    budget = Budget(known.seconds, per_draft_token=0.0)
    return replace(drafter, budget=budget, hope=known.kept)


def _grouped(rule: Grouped, knobs: WindowKnobs, drawing: DrawingModel) -> Grouped:
    rule = replace(rule, group=knobs.group, delta=knobs.delta)
    if knobs.distance is None:
        return rule
    vectors = drawing.vectors_by_token()
    if vectors is None:
        raise ValueError(f"{drawing.name} tells no vectors of its codes; leave the distance out")
    return replace(rule, vectors=vectors, distance=knobs.distance)
