"""Steps: passages up to a blank line, written by the follower and perhaps again by the leader."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from draftwood_choices.collaboration.ends import step_end, until
from draftwood_choices.collaboration.passages import (
    FOLLOWER,
    LEADER,
    JudgeRequest,
    Passage,
    TurnRequest,
)
from draftwood_choices.collaboration.rule import Course

LONGEST = 256
"""Tokens of a step; one without an end is cut there."""


@dataclass(frozen=True)
class StepSeen:
    """A step of the follower, and what came before it.

    Attributes:
        passage: the step.
        writers: of the earlier steps, in order.
    """

    passage: Passage
    writers: tuple[str, ...] = ()

    @property
    def logprobs(self) -> list[float]:
        """Log-probabilities of its tokens, in nats."""
        return [each.logprob for each in self.passage.tokens if each.logprob is not None]

    @property
    def mean_logprob(self) -> float:
        return sum(self.logprobs) / max(1, len(self.logprobs))

    @property
    def mean_entropy(self) -> float:
        """Mean entropy of its distributions, in bits."""
        found = [each.entropy for each in self.passage.tokens if each.entropy is not None]
        return sum(found) / max(1, len(found))


@dataclass
class StepsWritten:
    """Walks over steps; a rule decides on each."""

    writers: list[str] = field(default_factory=list)
    _place: int = 0  # of the next step in the answer

    def course(self, rewrites: Callable[[StepSeen], bool]) -> Course:
        """Let the leader write those steps again for which this is true."""
        while True:
            step = yield from self.draft()
            if rewrites(StepSeen(step, tuple(self.writers))):
                step = yield from self.rewrite(step)
            self.writers.append(step.writer)

    def draft(self) -> Generator[TurnRequest, Passage | float, Passage]:
        """Let the follower write a step."""
        start = self._place
        step = yield TurnRequest(FOLLOWER, LONGEST, until(step_end, start), reads=True)
        assert isinstance(step, Passage)
        self._place = len(step.behind)
        return step

    def rewrite(self, step: Passage) -> Generator[TurnRequest, Passage | float, Passage]:
        """Let the leader write the newest step again."""
        ends = until(step_end, len(step.before))
        found = yield TurnRequest(LEADER, LONGEST, ends, instead=True)
        assert isinstance(found, Passage)
        self._place = len(found.behind)
        return found

    def restore(self, step: Passage) -> Generator[Passage, Passage | float, None]:
        """Put a step back in the newest one's place."""
        yield step
        self._place = len(step.behind)


def judged(writer: str) -> Generator[JudgeRequest, Passage | float, float]:
    """Ask a writer what it thinks of the newest step: its mean log-probability, in nats."""
    found = yield JudgeRequest(writer)
    assert isinstance(found, float)
    return found
