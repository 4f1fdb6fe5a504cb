"""Draft while the target runs: for outcomes of its pass that are likely, and below its root."""

import time
from collections import abc
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from draftwood.arrays import Float
from draftwood.drafters.ahead import BranchingSession
from draftwood.drafters.drafter import DraftRequest, VerifiedTree
from draftwood.drafters.overlap import Overlap
from draftwood.engine.executors.ahead import DraftedAhead, TurnDraft
from draftwood.engine.executors.executor import Stopwatch
from draftwood.engine.executors.in_turn import InTurn
from draftwood.engine.executors.likely import LikelyOutcomes
from draftwood.engine.task import StepBudget
from draftwood.models.model import ForwardInput, ModelInput, ModelOutput, ModelSession, joined
from draftwood.native.logit_rows import LogitRow
from draftwood.rng import Rng
from draftwood.sampling import Context, LazyProbs
from draftwood.stats import DraftingTime, Step
from draftwood.together import clock
from draftwood.tree import DraftTree

if TYPE_CHECKING:
    from draftwood.engine.sequence import Sequence

SMOOTHING = 0.1
"""Weight of a step in the means of seconds and of rejections."""


class RestNeededError(Exception):
    """A verdict depends on more than the root."""


class RootProbs(LazyProbs):
    """The target's distribution at the root of a tree."""

    def __getitem__(self, node: int) -> Float[np.ndarray, " vocab"]:
        """Probabilities after the root; RestNeededError after another node."""
        if node > 0:
            raise RestNeededError
        return super().__getitem__(node)

    def library_row(self, node: int) -> LogitRow | tuple[Float[np.ndarray, "1 vocab"], int] | None:
        if node > 0:
            raise RestNeededError
        return super().library_row(node)

    def draw(self, node: int, rng: Rng) -> int:
        if node > 0:
            raise RestNeededError
        return super().draw(node, rng)


@dataclass(frozen=True, eq=False)
class RootRun:
    """A tree of which only the root was run.

    Attributes:
        run: of the whole tree.
        output: of the root; None where the cache has lost it since.
        seconds: by phase so far.
    """

    run: ForwardInput
    output: ModelOutput | None
    seconds: dict[str, float]

    @property
    def rest(self) -> ForwardInput:
        """The nodes that are still to be run."""
        return replace(self.run, first=0 if self.output is None else 1)

    def joined(self, rest: ModelOutput) -> ModelOutput:
        """The output of the whole tree."""
        if self.output is None:
            return rest
        return joined(self.output, rest)


class Overlapped(InTurn):
    """Drafts in a side thread while the target runs; implements ``Executor``.

    Drafts draw from a copy of the text's randomness, which takes its place where the tree is used:
    at each verdict the text finds just what it would without overlap.
    """

    def __init__(self, text: "Sequence", overlap: Overlap) -> None:
        self.overlap, self.entered_in = overlap, overlap.thread.enter()
        self.own = text.rng.copy()  # of the session that drafts in turn
        self.started: list[ModelSession] = []  # closed once nothing drafts any more
        try:
            self.session = self._start(text)
        except BaseException:
            overlap.thread.leave(self.entered_in)
            raise
        text.draft, text.has_draft_model = self.session, True
        super().__init__(text)
        self.side: DraftedAhead | None = None  # for outcomes of the pass under way
        self.below_root: TurnDraft | None = None  # while the root is run by itself
        self.prepared: DraftTree | None = None
        self.verified: VerifiedTree | None = None  # which the session has not learnt yet
        self.delayed: tuple[DraftTree, Context] | None = None  # verified by its root alone so far
        self.left_at = self.entered_at = 0.0  # when the last pass began and ended
        self.spent = DraftingTime()
        self.pace = OverlapPace()
        self.closed = False
        self._budget = StepBudget()
        self._runs_root = False  # at present
        self._root_run: RootRun | None = None  # where its verdict depends on more

    def _start(self, text: "Sequence") -> BranchingSession:
        request = DraftRequest(text.options.sampler, self.own, text.session, self.started)
        started = text.drafter.start(request)
        session = started.branching
        if session is None or started.reads:
            raise ValueError(f"{text.drafter.name} says that it drafts ahead, and cannot")
        return session

    # a step

    def plan(self, budget: StepBudget) -> abc.Sequence[ModelInput]:
        """Run the next tree, or its root while the others are being drafted, or these others."""
        text, before, self._budget = self.text, self._root_run, budget
        if before is not None:
            self._draft_ahead()
            self._run, self._seconds = before.rest, before.seconds
            return [self._run]
        watch = Stopwatch()
        context = text.context_for(budget)
        self.prepared = self._prepared(text.root, context)
        self._runs_root = self._may_run_root(context)
        if self._runs_root:
            self.own.state = text.rng.state
            self.below_root = TurnDraft(self.session, text.root, context)
            self._send(self.below_root)
            self._run = ForwardInput(text.session, DraftTree.of([text.root], [-1]))
        watch.lap("draft")
        self._seconds = watch.seconds
        if not self._runs_root:
            self._run = self._drafted()
        assert self._run is not None  # one or the other
        return [self._run]

    def commit(self, outputs: abc.Sequence[ModelOutput], seconds: float) -> abc.Sequence[Step]:
        (output,), before, run = outputs, self._root_run, self._run
        self._root_run = None
        assert run is not None  # commit follows plan
        self._seconds["target"] += seconds
        if before is not None:
            return [self._verified(before.run, before.joined(output), runs=2)]
        if not self._runs_root:
            return [self._verified(run, output)]
        self._runs_root = False
        run, state = self._drafted(), self.text.rng.state
        try:
            return [self._verified(run, output)]
        except RestNeededError:
            self.text.rng.state = state
            self._root_run = RootRun(run, output, self._seconds)
            return []

    def _may_run_root(self, context: Context) -> bool:
        """True if the root is to be run by itself, while the tree below it is drafted."""
        if (
            self.prepared is not None
            or context.max_draft_len < 1
            or self.text.options.bound is not None
        ):
            return False
        when = self.overlap.pre_verify
        return when == "always" or (when == "auto" and self.pace.pre_verify_pays)

    def _drafted(self) -> ForwardInput:
        """The next tree, whose seconds count."""
        run, seconds = self.draft(self._budget)
        self._seconds["draft"] += seconds["draft"]
        return run

    def _proposed(self, context: Context) -> DraftTree:
        text, below = self.text, self.below_root
        tree, self.prepared = self.prepared, None
        if below is not None:
            tree = self._below(below)
        if tree is None:
            since = clock()
            self.own.state = text.rng.state
            tree = self.session.propose(text.root, context)
            self._count(clock() - since, 0.0)
        text.rng.state = self.own.state
        self.delayed = (tree, context)
        if below is None:
            self._draft_ahead()
        return tree

    def _probs(self, output: ModelOutput, tree: DraftTree) -> LazyProbs:
        """The target's distributions at the nodes that were run: all of them, or the root."""
        kind = LazyProbs if len(output.rows) == len(tree) else RootProbs
        return kind(output.rows, self.text.options.sampler, tree, self.text.context)

    def _verified(self, run: ForwardInput, output: ModelOutput, runs: int = 1) -> Step:
        text = self.text
        step = self.verify(run, output, self._seconds)
        if text.draft is not self.session:  # it is broken
            text.executor = InTurn(text)
            return replace(step, runs=runs)
        spent, self.spent = self.spent, DraftingTime()
        return replace(step, runs=runs, drafting=spent)

    def _learn(self, verified: VerifiedTree) -> None:
        """Keep what the session that drafts in turn is to learn, should nothing be prepared."""
        if self.text.draft is not self.session:
            return
        self.entered_at, self.verified = time.perf_counter(), verified
        if self.delayed is None:
            self.pace.ran(self.entered_at - self.left_at)
        self.delayed = None
        self.pace.rejects(len(verified.path) == 1)
        if self.side is not None and not self.side.may_follow(verified.tokens[1:]):
            self.side.drop()

    def preempt(self) -> None:
        """Run a root again that was run by itself."""
        if self._root_run is not None:
            self._root_run = replace(self._root_run, output=None)

    # beside it

    def _draft_ahead(self) -> None:
        """The last tree is to be verified as a whole: draft what may come after it."""
        given, self.delayed = self.delayed, None
        self.left_at, most = time.perf_counter(), self.overlap.outcomes
        if given is None or len(given[0]) == 1 or not most:
            return
        (tree, context), text = given, self.text
        sampler, rng = text.options.sampler, text.rng.copy()
        if sampler.reads_context:  # the text goes on while these are drafted
            context = replace(context, tokens=list(context.tokens))
        likely = LikelyOutcomes(tree, sampler, context, text.verifier, rng)
        self.side = DraftedAhead(self.session, likely, most)
        self._send(self.side)

    def _send(self, draft: DraftedAhead | TurnDraft) -> None:
        self.left_at = time.perf_counter()
        draft.send(self.overlap.thread, self.overlap.others)

    def _below(self, draft: TurnDraft) -> DraftTree | None:
        """The tree drafted while the target ran the root; None where that was given up."""
        now = time.perf_counter()
        tree = draft.result()
        self.below_root = None  # not before: what breaks off the waiting leaves it to `close`
        if tree is not None:
            self._count(*draft.seconds(now))
        self.pace.ran(now - self.left_at)
        return tree

    def _prepared(self, root: int, context: Context) -> DraftTree | None:
        """The tree drafted for what has come of the last pass; where there is none, the session
        that drafts in turn learns of the pass.
        """
        side = self.side
        verified, self.verified = self.verified, None
        if verified is None:  # of the prompt, or of a tree that nobody verified
            if side is not None:
                side.drop()
                side.wait()
                side.close()
            self.side = None
            return None
        found = None
        if side is not None:
            tokens = (*verified.tokens[1:], root)
            found = side.result(tokens, context, self.text.rng.state)
            self.side = None  # not before, as above
            self._count(*side.seconds(self.entered_at), ahead=1, kept=int(found is not None))
        if found is None:
            self.session.update(verified)
            return None
        self.session.close()
        self.session = self.text.draft = found.session
        self.own = found.outcome.rng
        return found.tree

    def _count(self, seconds: float, hidden: float, ahead: int = 0, kept: int = 0) -> None:
        if not ahead:
            self.pace.drafted(seconds)
        self.spent += DraftingTime(seconds, hidden, ahead, kept)

    # the end

    def close(self) -> None:
        # never waits, as the collector may call it; what is under way ends by itself
        if self.closed:
            return
        self.closed = True
        drafts = [draft for draft in (self.side, self.below_root) if draft is not None]
        for draft in drafts:
            draft.drop()
        if drafts:  # there is one at most
            drafts[0].when_over(self._end)
        else:
            self._end()

    def _end(self) -> None:
        for draft in (self.side, self.below_root):
            if draft is not None:
                draft.close()
        self.session.close()
        for session in self.started:
            session.close()
        self.overlap.thread.leave(self.entered_in)


class OverlapPace:
    """Mean seconds of passes and of drafts of a text, and how often nothing of a tree is kept."""

    def __init__(self) -> None:
        self.target: float | None = None  # seconds of a pass
        self.draft: float | None = None  # seconds of a tree
        self.rejected = 0.5

    def rejects(self, all_of_it: bool) -> None:
        self.rejected += SMOOTHING * (all_of_it - self.rejected)

    def ran(self, seconds: float) -> None:
        self.target = _mean(self.target, seconds)

    def drafted(self, seconds: float) -> None:
        self.draft = _mean(self.draft, seconds)

    @property
    def pre_verify_pays(self) -> bool:
        """True if a root that is run by itself saves more than it costs.

        Rejected, it saves what of drafting falls into its pass. Accepted, it costs what of its pass
        is longer than drafting, as the rest of the tree needs a pass of its own.
        """
        if self.target is None or self.draft is None:
            return False
        saved = self.rejected * min(self.target, self.draft)
        return saved > (1.0 - self.rejected) * max(self.target - self.draft, 0.0)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + SMOOTHING * (new - old)
