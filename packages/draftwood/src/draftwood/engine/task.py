"""Tasks of a scheduler: what they may ask for, and what comes of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from draftwood.models.model import CHUNK, ModelInput, ModelOutput, ModelSession
from draftwood.models.requirements import BlockCache, block_cache
from draftwood.sampling import NOTHING_SHARED, PassTime, SharedPass
from draftwood.validation import require_count

Progress = TypeVar("Progress")
"""Report of a pass by a task: of a text, a ``Step``."""

Reported = TypeVar("Reported", covariant=True)


SLOWER = 1.5
"""A step with prompts may take so many times what it takes without them, whatever the bound."""


@dataclass(frozen=True)
class Pace:
    """Bounds the seconds of a step by what forward passes are known to cost.

    Args:
        seconds: of a forward pass by rows.
        most: seconds that a step may take.
        per_context_token: seconds that each row takes longer for every token before it.
        learn: takes the time of every pass that runs, by which ``seconds`` may become truer.

    Raises:
        ValueError: for no time at all.
    """

    seconds: Callable[[int], float]
    most: float
    per_context_token: float = 0.0
    learn: Callable[[PassTime], object] | None = None

    def __post_init__(self) -> None:
        if not self.most > 0:
            raise ValueError(f"a step must have more than 0 seconds, got {self.most}")

    def saw(self, passes: Sequence[PassTime]) -> None:
        """Learn the time of these passes."""
        if self.learn is not None:
            for each in passes:
                self.learn(each)

    def prompt_rows(self, rows: int, context: int, length: int, most: int) -> int:
        """Rows of a prompt that fit beside others; at least 1, and all where there are no others.

        A step may always take half as long again as without prompts, or they would never end where
        a pass alone takes as long as a step may.

        Args:
            rows: of the step so far.
            context: tokens before these, summed over all of them.
            length: tokens of this prompt that are in the cache.
            most: rows that are wanted.
        """
        if not rows:
            return most
        allowed = max(self.most, SLOWER * (self.seconds(rows) + self.per_context_token * context))
        low, high = 1, max(1, most)
        while low < high:
            middle = (low + high + 1) // 2
            before = context + middle * length + middle * middle // 2
            if self.seconds(rows + middle) + self.per_context_token * before <= allowed:
                low = middle
            else:
                high = middle - 1
        return low


@dataclass(frozen=True, eq=False)
class OwnPass(ModelInput):
    """A forward pass that only its task knows how to run, by itself.

    Attributes:
        session: any of those that take part.
        run: gives what ``Task.commit`` takes.
        tokens: that it runs.
    """

    run: Callable[[], ModelOutput]
    tokens: int

    @property
    def rows(self) -> int:
        return self.tokens

    @property
    def past(self) -> int:
        return 0

    @property
    def runner(self) -> "OwnPass":
        return self

    def alone(self) -> ModelOutput:
        return self.run()

    def forward(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        """Run it, as a model runs inputs."""
        return [each.alone() for each in inputs]


@dataclass(frozen=True)
class SequenceStatus:
    """Progress of a task, and its share of the cache.

    Attributes:
        prompt_left: tokens of its prompt that are yet to be run.
        length: tokens in its cache.
        expected_tokens: that its next pass is expected to emit.
        wants: blocks of the cache that its next tree, or all of its prompt, may take.
        cache: with a limit, that it takes them of; None for a cache without blocks or limit.
        has_draft_model: True if another model drafts, whose passes texts can share.
    """

    prompt_left: int = 0
    length: int = 0
    expected_tokens: float = 1.0
    wants: int = 0
    cache: BlockCache | None = None
    has_draft_model: bool = False


@dataclass(frozen=True)
class StepBudget:
    """Limits of a task's next pass, given by the scheduler.

    Attributes:
        prompt_rows: most tokens of its prompt.
        shared: what the other tasks do in the same pass.
        last_passes: how long the last pass of this task took, others' trees included, or each of
            its last steps in a row; nothing where that is not known, or more than trees was run.
    """

    prompt_rows: int = CHUNK
    shared: SharedPass = NOTHING_SHARED
    last_passes: tuple[PassTime, ...] = ()


ALONE = StepBudget()
"""The budget of a task that nothing shares a pass with."""


class Task(Protocol[Reported]):
    """Something that runs models until it has an end: a text, several answers to one prompt.

    The constructor checks what it is given. Caches are opened by the first ``plan``.
    """

    @property
    def finish_reason(self) -> str | None:
        """Why it ended; None while it goes on."""
        ...

    @property
    def status(self) -> SequenceStatus:
        """Its progress, asked before each pass."""
        ...

    def plan(self, budget: StepBudget) -> Sequence[ModelInput]:
        """Say what to run next; asked once before each pass, and again where there is nothing.

        All inputs have one runner.
        """
        ...

    def preempt(self) -> bool:
        """Give its share of the cache back for now, and compute it again later; False where it has
        none.
        """
        ...

    def commit(self, outputs: Sequence[ModelOutput], seconds: float) -> Sequence[Reported]:
        """Take the outputs of the inputs, in their order.

        Args:
            seconds: that running them took.

        Returns:
            Progress to report, if any.
        """
        ...

    def close(self) -> None:
        """Give all caches back; a second call does nothing."""
        ...


class HoldingSession(ModelSession, Protocol):
    """A session that can have room in its cache before it has tokens, as ``PooledSession`` can."""

    def reserve(self, count: int) -> int: ...


class KeepsCache:
    """A task that is never preempted.

    One that calls ``need`` begins once that much of a limited cache is free, and takes it at once,
    so that no later pass lacks any.
    """

    _needs: tuple[HoldingSession, int] | None = None
    _has_begun = False

    @property
    def prompt_left(self) -> int:
        """Tokens of its prompt that are yet to be run."""
        return 0

    @property
    def status(self) -> SequenceStatus:
        if self._needs is None:
            return SequenceStatus(self.prompt_left)
        session, most = self._needs
        cache = block_cache(session.model)
        if self._has_begun:  # its blocks are there, also those of tokens to come
            return SequenceStatus(self.prompt_left, max(1, session.length), cache=cache)
        return SequenceStatus(max(1, self.prompt_left), wants=session.wants(most), cache=cache)

    def need(self, session: HoldingSession, rows: Sequence[int]) -> int | None:
        """Wait with the first pass for room for so many tokens and nodes of a session.

        Args:
            rows: numbers that will do, in rising order.

        Returns:
            The last of them that the cache can hold at all; None where it has no limit.

        Raises:
            ValueError: where it can hold none of them.
        """
        cache = block_cache(session.model)
        if cache is None or cache.limit is None:
            return None
        blocks = cache.limit // cache.block_bytes
        fitting = [each for each in rows if cache.blocks_for(each) <= blocks]
        if not fitting:
            raise ValueError(
                f"a text with passes over {rows[0]} tokens and rows needs"
                f" {cache.blocks_for(rows[0])} blocks of the cache, which can hold {blocks}; ask"
                " for fewer tokens or give it more memory"
            )
        self._needs = session, fitting[-1]
        return fitting[-1]

    def begin(self) -> None:
        """Take what it needs, before its first pass; a later call does nothing.

        Raises:
            CacheFullError: where others hold too much of it.
        """
        if self._needs is not None and not self._has_begun:
            session, most = self._needs
            session.reserve(most)
        self._has_begun = True

    def preempt(self) -> bool:
        return False


@dataclass(frozen=True)
class Event(Generic[Progress]):
    """Outcome of a step for one task.

    Attributes:
        number: of the task, as ``Scheduler.add`` gave it.
        progress: what the task reports, for a text a ``Step``; None where it reports nothing.
        finish_reason: with the task's last event, where it ended by itself.
        error: with the task's last event, where it failed.
    """

    number: int
    progress: Progress | None = None
    finish_reason: str | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Limits:
    """Bounds of what a scheduler runs at once.

    Args:
        requests: tasks that hold caches at the same time; the others wait.
        prompt_rows: tokens of prompts in one step, so that texts under way need not wait for a
            long prompt.
        pace: how long a step may take, which leaves less room for prompts beside other texts; at
            least one token of a prompt is always run. None for any time.
    """

    requests: int = 8
    prompt_rows: int = 512
    pace: Pace | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "prompt_rows"):
            require_count(name, getattr(self, name))

    def paced(self, seconds: Callable[[int], float], most: float) -> "Limits":
        """The same, with at most so many seconds for a step.

        Args:
            seconds: of a forward pass by rows, for instance a ``Curve``, or a ``Following``, which
                learns.
        """
        more, learn = getattr(seconds, "per_context_token", 0.0), getattr(seconds, "saw", None)
        return replace(self, pace=Pace(seconds, most, more, learn))
