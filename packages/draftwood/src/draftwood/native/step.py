"""Whole steps of texts in one call of the library; see step.h."""

import math
from collections.abc import Sequence
from ctypes import Array, addressof, c_double, c_float, c_int64, c_uint64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from draftwood.arrays import Float
from draftwood.native import library, structures
from draftwood.native.drafting import Costs, Drafting

if TYPE_CHECKING:
    from draftwood.native.drawn_trees import DrawnTrees
    from draftwood.native.filters import Filters
    from draftwood.native.head_drafting import HeadDrafting
    from draftwood.native.jacobi import JacobiRows

Rule = Literal["match", "rejection", "traversal", "k-seq"]
"""Rule by which the library keeps draft tokens."""

RULES: tuple[Rule, ...] = ("match", "rejection", "traversal", "k-seq")
"""In the order of ``Rule`` of verdicts.h."""


@dataclass(frozen=True, eq=False)
class NativeDraft:
    """Draft of a native step: its sources and costs, and what they learn of the pass.

    Attributes:
        costs: of forward passes, with room for the tree; None runs the root alone.
        drafting: of the request; None drafts and learns nothing, unless a head does.
        head: trained head that drafts alone, in the place of ``drafting``; it makes trees of any
            size, whatever the costs are.
        drawn: trees drawn from such a head, a draft model or the last pass's rows, likewise.
        raced: rows of the last pass, whose races give a chain of as many tokens as costs allow.
        ranks: likeliest successors that are learnt of each node; 0 learns the path alone.
        temperature: of their probabilities.
        hidden: layers whose hidden states are handed out; layer i is the input of decoder layer i.
        others: tokens that other texts are expected to emit in the same pass.
        in_a_row: most steps for which all of this holds.
    """

    costs: Costs | None = None
    drafting: Drafting | None = None
    ranks: int = 0
    temperature: float = 1.0
    hidden: tuple[int, ...] = ()
    others: float = 0.0
    head: "HeadDrafting | None" = None
    drawn: "DrawnTrees | None" = None
    raced: "JacobiRows | None" = None
    in_a_row: int = 1

    @property
    def most(self) -> int:
        """Draft tokens."""
        return 0 if self.costs is None else len(self.costs.tokens) - 1

    @property
    def uniforms(self) -> int:
        """Most uniform numbers that a step takes."""
        return 0 if self.drawn is None else self.drawn.shape.uniforms


class NativeStep(NamedTuple):
    """Result of a native step.

    Attributes:
        tokens, parents: of the tree's nodes.
        chances: of acceptance that each had, all its ancestors included; of a drawn tree that of
            the token in the row that it was drawn from.
        proposers: of each node as bits; see ``Drafting.proposers``.
        path: nodes that are now text, the root included.
        next_token: drawn behind them.
        draws: single draws that the step made.
        uniforms: uniform numbers that it took.
        seconds: by phase.
        drafter_seconds: of drafting, in the passes of the head or of the draft model.
        undrawable: logits behind the last node of the path where they leave no token to draw, and
            so no step was made; else None.
        is_head_broken: True if the head that drafts alone said NaN, and so nothing was drafted.
        learn_seconds: of drafting, in taking in what the pass said.
    """

    tokens: list[int]
    parents: list[int]
    chances: list[float]
    proposers: list[int]
    path: list[int]
    next_token: int
    draws: int
    uniforms: int
    seconds: dict[str, float]
    drafter_seconds: float = 0.0
    undrawable: Float[np.ndarray, " vocab"] | None = None
    is_head_broken: bool = False
    learn_seconds: float = 0.0


class RunLimits(NamedTuple):
    """Limits of steps in a row; the row ends for all texts of a pass where it ends for one.

    Attributes:
        steps: at most; 1 for a single one.
        tokens: that the text may still take.
        seconds: after which no further step begins.
        ends: tokens that end the text.
        keeps_states: whether the hidden states of each step are handed out, not those of a single
            one alone.
    """

    steps: int = 1
    tokens: int = 1
    seconds: float = 0.0
    ends: frozenset[int] = frozenset()
    keeps_states: bool = False


SINGLE = RunLimits()
"""A step by itself."""

PLACES_OF_RUN = 64
"""Places of the cache for steps in a row, beside those of one tree."""


def interrupt_rows() -> None:
    """Let rows of steps end with the step under way, from another thread: there is news."""
    if library.available():
        library.library().draftwood_interrupt()


class _TreeBuffers:
    """Arrays for the trees of some steps in a row, [steps size] each.

    Args:
        size: of a tree, at most.
    """

    def __init__(self, steps: int, size: int) -> None:
        self.steps, self.size = steps, size
        count = steps * size
        self.tokens, self.parents, self.path = ((c_int64 * count)() for _ in range(3))
        self.chances, self.proposers = (c_double * count)(), (c_uint64 * count)()

    def hand_to(self, structures: "Array[structures.CStep]") -> None:
        """Let each step write to arrays of its own."""
        names = ("tokens", "parents", "path", "chances", "proposers")
        for name in names:
            first = addressof(getattr(self, name))
            for number, step in enumerate(structures):
                setattr(step, name, first + 8 * number * self.size)


class TokensBefore:
    """The tokens before the root of a text's next tree, which only grow."""

    def __init__(self) -> None:
        self._held, self._known = library.integers([0]), 0

    def address(self, tokens: Sequence[int], room: int) -> int:
        """Address of these tokens, with room for so many more behind them."""
        needed = len(tokens) + room
        if needed > len(self._held):
            self._held, self._known = library.integers([0] * (2 * needed)), 0
        self._held[self._known : len(tokens)] = tokens[self._known :]
        self._known = len(tokens)
        return addressof(self._held)


class StepCaller:
    """Steps of one text.

    Args:
        key: of the request's noise.
        temperature: 0 takes the likeliest tokens.
        rule: by which nodes of drawn trees are kept.
        filters: what changes logits besides the temperature.
    """

    def __init__(
        self, key: int, temperature: float, rule: Rule = "match", filters: "Filters | None" = None
    ) -> None:
        self.structure = structures.CStep(
            key=key,
            is_drawn=temperature > 0.0,
            temperature=temperature,
            rule=RULES.index(rule),
            filters=None if filters is None else addressof(filters.structure),
        )
        self._filters, self._before = filters, TokensBefore()
        self._alone = Costs([1.0], [math.inf])  # a root without draft tokens
        self._buffers = _TreeBuffers(0, 0)
        self._told: Costs | None = None  # that the structure points to
        self._ends: frozenset[int] | None = None  # likewise
        self.run = structures.CStepRun()
        self.limits = SINGLE
        self._make_room(1, 1)

    @property
    def address(self) -> int:
        """Address of the structures of steps in a row."""
        return addressof(self.structures)

    def _make_room(self, steps: int, size: int) -> None:
        """Have structures and arrays for so many steps in a row with trees of this size."""
        held = self._buffers
        if steps <= held.steps and size <= held.size:
            return
        self._buffers = _TreeBuffers(max(steps, held.steps), max(size, held.size))
        self.structures = (structures.CStep * self._buffers.steps)()
        self.structures[0] = self.structure
        self.structure = self.structures[0]
        self._buffers.hand_to(self.structures)

    def prepare(
        self,
        draft: NativeDraft,
        root: int,
        place: int,
        max_draft_len: int,
        uniforms: Sequence[float] = (),
        limits: RunLimits = SINGLE,
    ) -> None:
        """Set up the next step, or the next ones in a row.

        Args:
            draft: draft of the step.
            root: the newest token.
            place: number of the next draw.
            max_draft_len: most draft tokens in a row.
            uniforms: the request's next ones, as many as a drawn tree takes; for each of the steps.
            limits: of the steps in a row.
        """
        costs = draft.costs or self._alone
        self._make_room(limits.steps, 1 + draft.most)
        step = self.structure
        if costs is not self._told:
            self._told, step.most = costs, draft.most
            step.costs, step.slopes = addressof(costs.costs), addressof(costs.slopes)
        step.drafting = None if draft.drafting is None else draft.drafting.handle
        step.head = None if draft.head is None else draft.head.handle
        step.drawn = None if draft.drawn is None else draft.drawn.handle
        step.raced = None if draft.raced is None else draft.raced.handle
        self._uniforms = library.doubles(uniforms)
        step.uniforms = addressof(self._uniforms) if uniforms else None
        step.room, step.root, step.place, step.others = max_draft_len, root, place, draft.others
        step.ranks, step.temperature_of_ranks = draft.ranks, draft.temperature
        self.limits = limits
        if limits.steps > 1:
            self._limit(limits, draft.most)

    def prepare_text(self, tokens: Sequence[int], prompt: int) -> None:
        """Tell the text to filters that go by it, once the step is set up.

        Args:
            tokens: before the root.
            prompt: how many of them are not the answer's.
        """
        if self._filters is not None and self._filters.reads_text:
            step = self.structure
            room = (1 + step.most) * self.limits.steps
            step.before, step.prompt = self._before.address(tokens, room), prompt
            step.num_before = len(tokens)

    def _limit(self, limits: RunLimits, most: int) -> None:
        run = self.run
        if limits.ends != self._ends:
            self._ends, self._end_tokens = limits.ends, library.integers([*limits.ends])
            run.ends, run.num_ends = addressof(self._end_tokens), len(limits.ends)
        run.steps, run.tokens, run.seconds = limits.steps, limits.tokens, limits.seconds
        run.places = 1 + most + PLACES_OF_RUN

    @property
    def places(self) -> int:
        """Places of the cache that the next steps may take."""
        return int(self.run.places) if self.limits.steps > 1 else 1 + int(self.structure.most)

    @property
    def tokens(self) -> list[int]:
        """Tokens of the nodes of the first tree."""
        return self._buffers.tokens[: self.structure.nodes]

    def result(self, vocabulary: int, number: int = 0) -> NativeStep:
        """Read what came of a step.

        Args:
            vocabulary: entries of a row of logits.
            number: of the step in its row.
        """
        step, held = self.structures[number], self._buffers
        first = number * held.size
        nodes, kept = slice(first, first + step.nodes), slice(first, first + step.kept)
        undrawable = None
        if step.broken:
            row = (c_float * vocabulary).from_address(step.broken)
            undrawable = np.ctypeslib.as_array(row).copy()
        return NativeStep(
            held.tokens[nodes],
            held.parents[nodes],
            held.chances[nodes],
            held.proposers[nodes],
            held.path[kept],
            step.next_token,
            step.draws,
            step.uniforms_used,
            {
                "draft": step.draft_seconds,
                "target": step.target_seconds,
                "verify": step.verify_seconds,
            },
            step.drafter_seconds,
            undrawable,
            bool(step.is_head_broken),
            step.learn_seconds,
        )
