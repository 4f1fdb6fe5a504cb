"""Contract of an executor, and what executors have in common."""

from collections import abc
from typing import TYPE_CHECKING, Protocol
from weakref import ref

from draftwood.engine.task import StepBudget
from draftwood.models.model import ModelInput, ModelOutput
from draftwood.stats import Step
from draftwood.together import clock

if TYPE_CHECKING:
    from draftwood.engine.sequence import Sequence


class Executor(Protocol):
    """Makes the steps of one text, pass by pass: plan what to run, commit what came of it."""

    def plan(self, budget: StepBudget) -> abc.Sequence[ModelInput]:
        """Draft, and say what to run next."""
        ...

    def commit(self, outputs: abc.Sequence[ModelOutput], seconds: float) -> abc.Sequence[Step]:
        """Verify what was planned and keep what is accepted.

        Args:
            outputs: of the inputs that ``plan`` gave.
            seconds: that running them took.

        Returns:
            The steps, in the order in which they were made; none where another pass is needed.
        """
        ...

    def preempt(self) -> None:
        """Take note that the cache is given back between two passes."""
        ...

    def close(self) -> None:
        """End the drafter's session."""
        ...


class TextHolder:
    """Refers to a text without keeping it alive: no ring of references outlives a text."""

    def __init__(self, text: "Sequence") -> None:
        self._text = ref(text)

    @property
    def text(self) -> "Sequence":
        text = self._text()
        assert text is not None  # it owns whoever asks
        return text


class Stopwatch:
    """Seconds by phase, of the text alone where several take turns."""

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        self.seconds = {"draft": 0.0, "target": 0.0, "verify": 0.0, **(seconds or {})}
        self._since = clock()

    def lap(self, phase: str) -> None:
        now = clock()
        self.seconds[phase] += now - self._since
        self._since = now
