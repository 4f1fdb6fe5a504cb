"""Drafts made in another thread, and taken over where they are wanted."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from draftwood.drafters.ahead import BranchingSession
from draftwood.drafters.drafter import VerifiedTree
from draftwood.drafters.overlap import SideThread
from draftwood.engine.executors.likely import ForeseenOutcome, LikelyOutcomes
from draftwood.sampling import Context
from draftwood.storage.memory import is_lack_of_memory
from draftwood.together import results_together
from draftwood.tree import DraftTree


class DroppedError(Exception):
    """Nobody wants any more what is being drafted."""


class Wanted:
    """A flag that says if a draft is still wanted; who asks holds on to nothing else."""

    def __init__(self) -> None:
        self.dropped = False

    def go_on(self) -> None:
        """Called before each pass.

        Raises:
            DroppedError: to end what was dropped.
        """
        if self.dropped:
            raise DroppedError


class SideDraft(ABC):
    """Something that is drafted in a side thread.

    An error there is raised where the result is asked for. What is dropped ends before its next
    pass, and its errors with it.
    """

    def __init__(self) -> None:
        self._future: Future[None] | None = None
        self.wanted = Wanted()
        self._error: BaseException | None = None
        self._since = self._until = 0.0

    def send(self, thread: SideThread, others: int) -> None:
        """Draft in this thread; other threads' passes take so many threads meanwhile."""
        self._future = thread.call_beside(self._run, others)

    @abstractmethod
    def draft(self) -> None:
        """Draft, in the thread."""

    @abstractmethod
    def close(self) -> None:
        """Give back what nobody took over; called when the thread is done with it."""

    def drop(self) -> bool:
        """End it soon, without waiting; whether it never began."""
        self.wanted.dropped = True
        return self._future is None or self._future.cancel()

    def wait(self) -> None:
        """Until the thread is done with it; raises what went wrong."""
        if self._future is not None:
            with suppress(CancelledError):
                self._future.result()
        if self._error is not None:
            raise self._error

    def when_over(self, act: Callable[[], None]) -> None:
        """Call this once the thread is done with it: now, or there."""
        if self._future is None:
            act()
        else:
            self._future.add_done_callback(lambda _: act())

    def seconds(self, until: float) -> tuple[float, float]:
        """Seconds of drafting, and the part of them before a time of ``time.perf_counter``."""
        spent = self._until - self._since
        return spent, min(max(min(self._until, until) - self._since, 0.0), spent)

    def _run(self) -> None:
        self._since = time.perf_counter()
        try:
            self.draft()
        except DroppedError:
            pass
        except Exception as error:
            self._error = None if self.wanted.dropped else error
        finally:
            self._until = time.perf_counter()


class TurnDraft(SideDraft):
    """The next tree of a text, drafted while the target runs its root.

    Args:
        session: that drafts; nobody else uses it until the result is there.
        root: newest token of the text.
        context: the tokens before it.
    """

    def __init__(self, session: BranchingSession, root: int, context: Context) -> None:
        super().__init__()
        self.session, self.root, self.context = session, root, context
        self.tree: DraftTree | None = None

    def draft(self) -> None:
        before, self.session.go_on = self.session.go_on, self.wanted.go_on
        try:
            self.tree = self.session.propose(self.root, self.context)
        finally:
            self.session.go_on = before

    def result(self) -> DraftTree | None:
        """The tree; None where the thread was busy with other texts and did not begin."""
        if self._future is not None and self._future.cancel():
            return None
        self.wait()
        return self.tree

    def close(self) -> None:
        """The session belongs to the text."""


@dataclass(frozen=True, eq=False)
class PreparedTree:
    """A tree for an outcome that is not known yet.

    Attributes:
        session: that drafted it, and goes on from there.
        start: state of the randomness before it was drafted.
        max_draft_len: for draft tokens in a row.
        outcome: for which it was drafted, with the randomness of the session.
    """

    session: BranchingSession
    tree: DraftTree
    start: tuple[object, int, int]
    max_draft_len: int
    outcome: ForeseenOutcome


class DraftedAhead(SideDraft):
    """Trees for the likely outcomes of a pass, drafted while it runs, in shared passes.

    Args:
        session: as it is after proposing the tree; it stays so.
        likely: the outcomes of verifying the tree.
        most: outcomes to draft for.
    """

    def __init__(self, session: BranchingSession, likely: LikelyOutcomes, most: int) -> None:
        super().__init__()
        self.session, self.likely, self.most = session, likely, most
        self.outcomes: frozenset[tuple[int, ...]] | None = None  # until they are known
        self._branches: list[BranchingSession] = []
        self._found: dict[tuple[int, ...], PreparedTree] = {}

    def draft(self) -> None:
        try:
            self.wanted.go_on()
            outcomes = self.likely.first(self.session, self.most)
            self.outcomes = frozenset(each.tokens for each in outcomes)
            results_together([partial(self._one, each) for each in outcomes])
        except Exception as error:  # there is room for the text, if not for trees ahead
            if not is_lack_of_memory(error):
                raise

    def _one(self, outcome: ForeseenOutcome) -> None:
        self.wanted.go_on()
        start, tree = outcome.rng.state, self.likely.tree
        session = self.session.branch(outcome.rng, self.wanted.go_on)
        self._branches.append(session)
        verified = VerifiedTree(tree, [0, *outcome.path])
        session.update(verified)
        before = self.likely.before
        context = replace(
            before.extended(verified.tokens),
            max_draft_len=max(before.max_draft_len - len(outcome.tokens), 0),
        )
        drafted = session.propose(outcome.tokens[-1], context)
        self._found[outcome.tokens] = PreparedTree(
            session, drafted, start, context.max_draft_len, outcome
        )

    def may_follow(self, accepted: Sequence[int]) -> bool:
        """True if some outcome begins with these accepted tokens; False until all are known."""
        known = self.outcomes
        return known is not None and any(each[:-1] == tuple(accepted) for each in known)

    def result(
        self, tokens: tuple[int, ...], context: Context, state: tuple[object, int, int]
    ) -> PreparedTree | None:
        """Take over the tree drafted for an outcome; None where there is none.

        Args:
            tokens: accepted ones, and the one after them.
            context: of the next tree.
            state: of the text's randomness.
        """
        if self.outcomes is None or tokens not in self.outcomes:
            self.drop()
        self.wait()  # whatever breaks this off leaves the branches to the end of the text
        found = None if self.wanted.dropped else self._found.pop(tokens, None)
        # drawn from other numbers, or for another length, it would be another tree
        if found is not None and (found.start, found.max_draft_len) != (
            state,
            context.max_draft_len,
        ):
            found = None
        if found is not None:
            self._branches = [each for each in self._branches if each is not found.session]
        self.close()
        return found

    def close(self) -> None:
        branches, self._branches = self._branches, []
        for each in branches:
            each.close()
