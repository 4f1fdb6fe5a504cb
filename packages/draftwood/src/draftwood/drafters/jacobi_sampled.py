"""Draft tokens drawn from the rows that the last pass gave for their places."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import ClassVar

import numpy as np

from draftwood.costs.budget import Budget
from draftwood.drafters.drafter import (
    Drafter,
    DraftRequest,
    DraftSession,
    Need,
    Reads,
    VerifiedTree,
    native_tree,
)
from draftwood.drafters.resources import Resources
from draftwood.drafters.resting import Rest
from draftwood.drafters.window_starts import CopyingStart, Row, StartRow, StartUniform
from draftwood.native.drafting import Costs
from draftwood.native.drawn_trees import DrawnShape, DrawnTrees
from draftwood.native.jacobi import JacobiRows
from draftwood.native.step import NativeDraft, NativeStep
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampler, Sampling
from draftwood.shapes import Shape
from draftwood.tree import UNBOUNDED, DraftTree, Draw
from draftwood.validation import positive

LONGEST = 16
"""Most draft tokens of a pass: more gained nothing in the paper."""

HOPE, WEIGHT = 0.8, 2.0
"""Chance of a draft token that nothing is known of, by itself, and the draft tokens that it counts
for.
"""

STEADY = 8  # steps in a row for which a window keeps its size
FORGETTING = 0.95  # what a draft token leaves of what was seen of earlier ones at its depth


@dataclass(frozen=True)
class JacobiSampled(Drafter):
    """A chain of tokens, each drawn from the row that the last pass gave for its place.

    Speculative Jacobi Decoding (Teng et al. 2024, arXiv:2410.01699): a pass over a window of draft
    tokens gives the row of every place behind the first one that is rejected, conditioned on tokens
    that may be wrong. All of these places are drawn again, from their new rows. The rows are kept
    as they are after temperature, cuts and penalties: rejection sampling divides by them. That
    keeps the target's distribution, because a draft token depends on its row and on nothing else.
    One that outlived a pass, under a row that it was not drawn from, would not.

    Differs from the paper: the window is as long as pays by the measured curve and what was kept so
    far, down to none; new places start from a row too, a uniform one or one that is certain. Whole
    steps of the library keep logits, which cuts and penalties change when a token is drawn.

    Args:
        window: most draft tokens (W), 1 to 16.
        start_row: the row of a place that no pass has seen.
        budget: what passes cost; None takes the whole window each time.
        hope: chance of a draft token of which nothing is known.

    Raises:
        ValueError: for a window or hope out of range.

    Example:
        The first chain below 5 is 5 5 5. The pass says 6 after each of them, so that all rows of
        the next chain do; this target repeats 6 from there on.

        >>> drafter = JacobiSampled(3, StartFromLeft())
        >>> one_step(drafter, writing([6, 1, 2, 3, 4, 5, 6]), [1, 2, 3, 4, 5], steps=2)
        OneStep(drafted=[[6, 6, 6]], accepted=[6, 6, 6], then=6)
    """

    name: ClassVar[str] = "jacobi-sampled"
    uses: ClassVar[frozenset[Need]] = frozenset({"curve"})
    window: int = LONGEST
    start_row: StartRow = field(default_factory=StartUniform)
    budget: Budget | None = None
    hope: float = HOPE

    def __post_init__(self) -> None:
        positive("window", [self.window])
        if not 0.0 <= self.hope <= 1.0:
            raise ValueError(f"hope must be a probability from 0 to 1, got {self.hope}")
        if self.window > LONGEST:
            raise ValueError(f"window must be at most {LONGEST}, got {self.window}")

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        return cls(budget=Budget.of(resources.curve))

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({"independent"})

    def start(self, request: DraftRequest) -> DraftSession:
        return JacobiSession(self, request)


@dataclass(frozen=True)
class RacedJacobi(JacobiSampled):
    """The same chain, each token the one that the seed's race numbers choose from its row.

    Predictive sampling (Wiggers and Hoogeboom 2020, arXiv:2002.09928); MC-SJD (So et al. 2025,
    arXiv:2510.24211) couples drafts of one place too. The target's own draw at a place runs the
    same race, so that a row which hardly changes gives the same token again, and matching keeps it:
    one seed writes one text, whatever was drafted.

    Differs from the papers: the numbers are those of every other draw of the request, an
    exponential race, and nothing but agreement keeps a draft token.

    Example:
        The first chain below 1 is 1 1 1, and the pass says 2 after each of them: 2 wins the races
        of all three places of the next chain, where this target goes on with 3.

        >>> drafter = RacedJacobi(3, StartFromLeft())
        >>> one_step(drafter, writing([1, 2, 3, 4, 5]), [2, 3, 4, 5, 1], steps=2)
        OneStep(drafted=[[2, 2, 2]], accepted=[], then=3)
    """

    name: ClassVar[str] = "jacobi-raced"

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({"coupled"})

    def start(self, request: DraftRequest) -> DraftSession:
        return RacedSession(self, request)


class JacobiSession(DraftSession):
    """A text's window: the rows that the last pass gave for the next places.

    Args:
        config: the drafter.
        request: whose options of sampling make rows of logits.
    """

    races: ClassVar[bool] = False

    def __init__(self, config: JacobiSampled, request: DraftRequest) -> None:
        self.start_row, self.rng = config.start_row, request.rng
        self.sampler = request.sampler.for_drafting()
        self.vocab = request.target.model.vocab_size
        self.window = PayingWindow(config.window, config.budget, config.hope)
        self.before = Context([], 0)  # the text before the newest tree
        self.rows: list[Row] = []  # of the places behind the next root
        self.past: list[Row] = []  # of that root and the text before it, as far as starts reach
        self.drafts = False  # before that comes the prompt
        noise = None if self.races else self.rng.noise
        self._steps = LibrarySteps(self.window, self.start_row, self.sampler, self.vocab, noise)

    @property
    def reads(self) -> Reads:
        return Reads(logits=self.drafts)

    @property
    def needs_prompt(self) -> bool:
        return False

    def native(self, context: Context) -> NativeDraft | None:
        """Leave steps to the library, but not of sessions that propose otherwise."""
        is_own = type(self) in (JacobiSession, RacedSession)
        return self._steps.draft(context.tokens) if is_own else None

    def commit_native(self, step: NativeStep) -> DraftTree:
        self.drafts, self.rows, self.past = True, [], []
        self.window.learn(len(step.tokens) - 1, len(step.path) - 1)
        return self._steps.taken(step)

    def propose(self, root: int, context: Context) -> DraftTree:
        self.drafts, self.before = True, context
        tokens, rows = self._drafted(root, min(self.window.size(), context.max_draft_len))
        if not rows:
            return DraftTree.chain(tokens)
        return DraftTree(np.array(tokens), np.arange(-1, len(rows)), np.stack(rows), "independent")

    def _drafted(self, root: int, count: int) -> tuple[list[int], list[Row]]:
        """Root and draft tokens, and the row of each of these."""
        tokens, rows, pick = [*self.before.tokens, root], [*self.past], self._picker()
        for place in range(count):
            known = place < len(self.rows)
            rows.append(self.rows[place] if known else self.start_row.row(tokens, rows, self.vocab))
            tokens.append(pick(rows[-1]))
        return tokens[len(self.before.tokens) :], rows[len(self.past) :]

    def _picker(self) -> Callable[[Row], int]:
        """Draw tokens from rows, in the order of their places."""
        return lambda row: int(self.rng.draw_independent(row[None], 1)[0, 0])

    def update(self, verified: VerifiedTree) -> None:
        past, self.rows, self.past = self.past, [], []
        if not self.drafts or verified.output is None:
            return
        tree, last = verified.tree, verified.path[-1]
        self.window.learn(len(tree) - 1, last)
        # the root to come takes the place of the first token below
        first, reach = last + 1, self.start_row.reach
        seen = min(first, reach)
        if nodes := range(first - seen, min(len(tree), first + self.window.size())):
            rows = self._rows(verified, nodes)
            self.rows = rows[seen:]
            self.past = [*past, *rows[:seen]][-reach:] if len(rows) >= seen > 0 else []

    def _rows(self, verified: VerifiedTree, nodes: range) -> list[Row]:
        """The target's rows after these nodes, as far as they are numbers."""
        contexts, tokens = [], verified.tree.token_list
        if self.sampler.reads_context:
            contexts = [self.before.extended(tokens[: node + 1]) for node in nodes]
        rows = list(self.sampler.probs(verified.logits[nodes.start : nodes.stop], contexts))
        return list(takewhile(lambda row: bool(row[0] >= 0.0), rows))


class RacedSession(JacobiSession):
    """A window of tokens that win the races to come."""

    races: ClassVar[bool] = True

    def propose(self, root: int, context: Context) -> DraftTree:
        self.drafts, self.before = True, context
        tokens, _ = self._drafted(root, min(self.window.size(), context.max_draft_len))
        return DraftTree.chain(tokens, "coupled")

    def _picker(self) -> Callable[[Row], int]:
        if not self.rng.noise:
            return lambda row: int(row.argmax())
        races: Rng = self.rng.copy()
        return races.draw


class LibrarySteps:
    """Whole steps of one text, in a row: those that draft nothing, and windows of the library's own
    rows where it knows what new places start with.

    Args:
        window: of the text.
        start: of a place that no pass has seen.
        sampler: by which rows are drawn from.
        vocab: entries of a row.
        noise: whether tokens are drawn, or the likeliest are taken; None runs races.
    """

    def __init__(
        self,
        window: "PayingWindow",
        start: StartRow,
        sampler: Sampler,
        vocab: int,
        noise: bool | None,
    ) -> None:
        self._window, self._start, self._sampler = window, start, sampler
        self._vocab, self._noise = vocab, noise
        self._length = -1  # of the text that the library's rows go on from
        self._rows: NativeDraft | None = None  # that draws from them, without costs
        self._newest: NativeDraft | None = None
        self._costs: dict[int, Costs] = {}  # by draft tokens

    def draft(self, before: Sequence[int]) -> NativeDraft | None:
        """Say what the library drafts next; None leaves the step to Python.

        Args:
            before: tokens before the root.
        """
        if idle := self._window.idle:
            self._newest = NativeDraft(in_a_row=idle)
            return self._newest
        if self._length != len(before):  # it begins, or steps were made otherwise
            self._length, self._rows = len(before), self._begun(before)
        size = self._window.size()
        if size not in self._costs:
            self._costs[size] = Costs([0.0] * (1 + size), [0.0] * (1 + size))
        self._newest = self._rows and replace(
            self._rows, costs=self._costs[size], in_a_row=self._window.steady_steps
        )
        return self._newest

    def taken(self, step: NativeStep) -> DraftTree:
        """Take note of a step; gives its tree, for reports."""
        if self._newest is not None and self._newest.costs is not None:
            self._length += len(step.path)
        return native_tree(step, self._newest)

    def _begun(self, before: Sequence[int]) -> NativeDraft | None:
        start, sampler, longest = self._start, self._sampler, self._window.longest
        backs = start.backs(before) if isinstance(start, CopyingStart) else None
        if not backs or not isinstance(sampler, Sampling):
            return None
        rows = JacobiRows(self._vocab, longest, backs, before[-1 - max(backs) :])
        if self._noise is None:
            return NativeDraft(raced=rows)
        shape = DrawnShape((1,) * longest, longest, "independent")
        trees = DrawnTrees(rows, shape, sampler.temperature, self._noise)
        return NativeDraft(drawn=trees)


class PayingWindow:
    """The number of draft tokens that pays, by what became of those before.

    A draft token is kept with the rate of those that were reached at its depth. A number stays for
    ``STEADY`` steps, however many of them the library makes in a row, as drawn texts depend on it.
    Where none pays, the text rests from drafting, and later begins with fresh hope.

    Args:
        longest: most draft tokens.
        budget: of passes; None takes ``longest`` always.
        hope: chance of a draft token of which nothing is known.
    """

    def __init__(self, longest: int, budget: Budget | None, hope: float = HOPE) -> None:
        self.longest, self.budget, self.hope = longest, budget, hope
        self._rest = Rest(1.0)
        self._size: int | None = None
        self._steps, self._gain = 0, 0.0  # with this size
        self._hope()

    def _hope(self) -> None:
        self._kept = np.full(self.longest, self.hope * WEIGHT)
        self._reached = np.full(self.longest, WEIGHT)

    def size(self) -> int:
        """Draft tokens of the next pass."""
        if self.budget is None:
            return self.longest
        if self._size is None:
            rates = np.cumprod(self._kept / self._reached).tolist()
            self._size = 0 if self._rest.left else self.budget.best(rates)
        return self._size

    @property
    def idle(self) -> int:
        """Passes to come that draft nothing, whatever becomes of them; 0 where the next drafts."""
        return 0 if self.size() else self._rest.left or self.steady_steps

    @property
    def steady_steps(self) -> int:
        """Steps to come that draft as many tokens, where the text does not rest."""
        return UNBOUNDED if self.budget is None else STEADY - self._steps

    def learn(self, drafted: int, kept: int) -> None:
        """Take in that the first ``kept`` of the draft tokens were kept."""
        if self.budget is None:
            return
        if self._rest.left:
            self._size = None
            if not self._rest.goes_on():
                self._hope()
            return
        reached = slice(0, min(kept + 1, drafted))
        self._kept[reached] *= FORGETTING
        self._reached[reached] = self._reached[reached] * FORGETTING + 1.0
        self._kept[:kept] += 1.0
        gain = (1 + kept) * self.budget.costs[0] / self.budget.costs[drafted]
        self._gain += gain if drafted else 0.0
        self._steps += 1
        if self._steps == STEADY:
            self._rest.count(self._gain, self._steps)
            self._size, self._steps, self._gain = None, 0, 0.0
