"""What a batch runs: tasks, what they ask for, and what comes of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from draftwood.engine.options import FinishReason
from draftwood.interfaces.model import ForwardInput, Keep, ModelSession
from draftwood.validation import require_whole


@dataclass(frozen=True, eq=False)
class PromptChunk:
    """A piece of a prompt, which is appended to its sequence for good.

    Attributes:
        keep: logits of all tokens, or of the last one.
        hidden: layers whose hidden states are wanted.
    """

    session: ModelSession
    tokens: Sequence[int]
    keep: Keep = "last"
    hidden: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class OwnPass:
    """A forward pass that only its task knows how to run, by itself.

    Attributes:
        run: gives what ``Task.take`` takes.
        rows: tokens that it runs.
    """

    run: Callable[[], Any]
    rows: int


Input = PromptChunk | ForwardInput | OwnPass
"""One sequence's part in a forward pass, or a whole pass."""


@runtime_checkable
class Task(Protocol):
    """Something that runs models until it has an end: a text, several answers to one prompt.

    The constructor checks what it is given. Caches are opened by the first ``next_inputs``.
    """

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None while it goes on."""
        ...

    def next_inputs(self, alone: bool = False) -> Sequence[Input]:
        """What to run next, asked once before each pass; nothing where it waits.

        Args:
            alone: whether no other task is under way, so that an ``OwnPass`` keeps nobody from
                sharing a pass.
        """
        ...

    def take(self, outputs: Sequence[Any], seconds: float) -> Any:
        """Take what came of the inputs and the seconds that running them took.

        There is an ``Output`` of each input. Gives what is to be told of it, or None.
        """
        ...

    def close(self) -> None:
        """Give all caches back; a second call does nothing."""
        ...


@dataclass(frozen=True)
class Event:
    """What a step brought for one task.

    Attributes:
        number: of the task, as ``Batch.add`` gave it.
        progress: what the task tells, for a text a ``Step``; None where it tells nothing.
        finish_reason: with the task's last event, where it ended by itself.
        error: with the task's last event, where it failed.
    """

    number: int
    progress: Any = None
    finish_reason: FinishReason | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Limits:
    """How much a batch does at once.

    Args:
        requests: tasks that hold caches at the same time; the others wait.
        prompt_rows: tokens of prompts in one step, so that texts under way need not wait for a
            long prompt. One chunk is run even if it is longer.
    """

    requests: int = 8
    prompt_rows: int = 512

    def __post_init__(self) -> None:
        for name in ("requests", "prompt_rows"):
            value = getattr(self, name)
            require_whole(name, value, "a whole number >= 1")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
