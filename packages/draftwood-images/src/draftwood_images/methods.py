"""Methods as pictures use them: windows, starts and groups, and what passes cost."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

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
WINDOWS, ROUNDS = (1, 2, 4, 8, 16), 3
"""Draft tokens of windows that are timed, and how often each is."""
BEGINNING, PIECE = 4, 32
"""Tokens of each picture's part that is drawn for it, and those that all parts have beyond."""
LOST = 1.25
"""Factor by which plain drawing is faster than windows that are timed once."""
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
        together: pictures that share a pass.
    """

    def __init__(self, easel: Easel, together: int = 1) -> None:
        self.easel, self.together = easel, together
        self._windows: dict[tuple[str, WindowKnobs], WindowCosts] = {}
        self._rounds: dict[tuple[str, WindowKnobs], list[TimedPiece]] = {}

    @cached_property
    def passes(self) -> Costs:
        """Seconds of a pass by nodes; a guided one runs each node twice."""
        drawing = self.easel.drawing
        curve = measure(drawing.model, SIZES, max(1, drawing.layout.length // 2), SECONDS)
        return curve if self.easel.rule.guidance == 1.0 else lambda nodes: curve(2 * nodes)

    def windows(self, name: str, knobs: WindowKnobs) -> "WindowCosts":
        """Costs of a method's windows up to that of the knobs, measured once.

        A picture of one token leaves nothing to draft, and no pass to time.
        """
        if self.easel.drawing.layout.length < 2:
            return WindowCosts(float, 0.0, pays=False)
        if (name, knobs) not in self._windows:
            self._windows[name, knobs] = self._measured(name, knobs)
        return self._windows[name, knobs]

    def _measured(self, name: str, knobs: WindowKnobs) -> "WindowCosts":
        """Time windows of growing size, up to the first that draws slower than smaller ones."""
        plain, windows = ("plain", WindowKnobs()), dict[int, tuple[str, WindowKnobs]]()
        alone, pieces = self.piece(*plain, 1), dict[int, TimedPiece]()
        for size in sorted({*(each for each in WINDOWS if each < knobs.window), knobs.window}):
            windows[size] = name, replace(knobs, window=size, whole=True)
            pieces[size] = self.piece(*windows[size], 1)
            if pieces[size].pace < max(each.pace for each in pieces.values()):
                break
        for rounds in range(2, ROUNDS + 1):  # sizes take turns, as other work comes and goes
            if LOST * max(each.pace for each in pieces.values()) < alone.pace:
                break
            alone = self.piece(*plain, rounds)
            pieces = {size: self.piece(*each, rounds) for size, each in windows.items()}
        seconds = {1 + size: MARGIN * each.seconds for size, each in pieces.items()}
        return WindowCosts(
            Curve.fit({1: alone.seconds, **seconds}),
            fmean(each.kept for each in pieces.values()),
            max(each.pace for each in pieces.values()) > MARGIN * alone.pace,
        )

    def piece(self, name: str, knobs: WindowKnobs, rounds: int = ROUNDS) -> "TimedPiece":
        """Time a method on parts of as many pictures as share a pass, so often in all."""
        known = self._rounds.setdefault((name, knobs), [])
        method = picture_method(name, self.easel, knobs)
        tokens = BEGINNING + PIECE // self.together
        tokens += knobs.window if knobs.whole else 0  # the last windows are cut
        if not known:
            self._timed(method, 2, 0)  # warm
        while len(known) < rounds:
            known.append(self._timed(method, tokens, len(known)))
        return TimedPiece.of(known)

    def _timed(self, method: Method, tokens: int, turn: int) -> "TimedPiece":
        first, length = turn * self.together, min(tokens, self.easel.drawing.layout.length)
        seeds = range(first, first + self.together)
        begun, since, ended, steps = set[int](), 0.0, 0.0, list[Step]()
        for number, step in self.easel.pieces(method, seeds, length):
            ended = time.perf_counter()
            if len(begun) == self.together:
                steps.append(step)
            else:
                begun.add(number)
                since = ended
        drafted = [step for step in steps if step.drafted]
        kept = sum(step.accepted > 0 for step in drafted) / max(1, len(drafted))
        count = max(1, len(steps))
        made = sum(len(step.tokens) for step in steps)
        seconds = max(ended - since, 1e-9)  # a coarse clock may not have moved
        return TimedPiece(seconds * self.together / count, made / count, kept)


@dataclass(frozen=True)
class TimedPiece:
    """Time and tokens of parts of pictures that share passes, the prompts' left out.

    Attributes:
        seconds: of a pass.
        tokens: that it gave each picture.
        kept: share of first draft tokens that were kept.
    """

    seconds: float
    tokens: float
    kept: float

    @classmethod
    def of(cls, rounds: Sequence["TimedPiece"]) -> "TimedPiece":
        """The least time, since nothing but other work makes a pass longer, and means."""
        return cls(
            min(each.seconds for each in rounds),
            fmean(each.tokens for each in rounds),
            fmean(each.kept for each in rounds),
        )

    @property
    def pace(self) -> float:
        """Tokens of each picture in a second."""
        return self.tokens / self.seconds


@dataclass(frozen=True, eq=False)
class WindowCosts:
    """Costs of windows, and the share that they keep.

    Attributes:
        seconds: of a pass by nodes of each picture in it, drafting and verifying included; of one
            node without drafts.
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
        known = None if costs is None or knobs.whole else costs.windows(name, knobs)
        if known is not None and not known.pays:
            plain = methods.build("plain", easel.model)
            return Method(plain.drafter, plain.verifier, built.name, built.otherwise)
        start = PictureStart(easel.drawing.layout, knobs.start)
        drafter = replace(drafter, window=knobs.window, start_row=start)
        drafter = _paying(drafter, known, knobs.whole)
    if isinstance(verifier, Grouped):
        verifier = _grouped(verifier, knobs, easel.drawing)
    return Method(drafter, verifier, built.name, built.otherwise)


def _paying(drafter: JacobiSampled, known: WindowCosts | None, whole: bool) -> Drafter:
    """Draft as much as pays, or whole windows; without costs as is assumed to pay."""
    if known is None:
        return replace(drafter, budget=None if whole else Budget())
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
