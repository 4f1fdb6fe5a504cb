"""A text under way, and what it is once it is finished."""

import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Literal

from draftwood.engine.scheduler import run_all
from draftwood.engine.sequence import Sequence
from draftwood.models.model import InProcess
from draftwood.stats import Stats, Step, TokenLogprob
from draftwood.text.builder import TextBuilder


@dataclass(frozen=True)
class Generation:
    """A finished text.

    Attributes:
        text: the answer, without stop strings and special tokens.
        token_ids: every emitted token, an end-of-text token included.
        finish_reason: ``stop`` where the model or a stop string ended the text, else ``length``.
        model: name of the target.
        method: name of the method.
        stats: what it took.
        logprobs: of every emitted token, where they were asked for.
        others: further answers to the same prompt.
        details: what a package's method tells beside them, in plain types by name.
    """

    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length"]
    model: str
    method: str
    stats: Stats
    logprobs: list[TokenLogprob] | None = None
    others: tuple["Generation", ...] = ()
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def answers(self) -> tuple["Generation", ...]:
        """All answers to the prompt, this one first; answer i is the text of seed + i."""
        return (self, *self.others)

    def as_json(self) -> dict[str, object]:
        more: dict[str, object] = {}
        if self.logprobs is not None:
            more["logprobs"] = [each.as_json() for each in self.logprobs]
        if self.others:
            more["answers"] = [replace(each, others=()).as_json() for each in self.answers]
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "model": self.model,
            "method": self.method,
            "stats": self.stats.as_json(),
            **self.details,
            **more,
        }


class Stream(InProcess):
    """A text under way: iterate for its pieces as they are accepted, then read ``result``.

    A text that is left before its end is ended by ``close``, by the end of ``with lm.stream(...) as
    stream:``, or when nothing refers to the stream any more; what it held of the cache is free from
    then on.

    Attributes:
        steps: the steps so far, with their trees but not the rows these were drawn from.
    """

    def __init__(self, sequence: Sequence, model: str, method: str) -> None:
        self.steps: list[Step] = []
        self.sequence = sequence
        (builder,) = sequence.stops
        assert isinstance(builder, TextBuilder)  # of ``StopStrings``
        self._builder = builder
        self._names = (model, method)
        # does not refer to the stream, which may so be dropped
        self._pieces = _pieces(sequence, self._builder, self.steps)
        self._turn = threading.Lock()
        self._ended = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            with self._turn:
                return next(self._pieces)
        finally:
            if self._ended:  # by another thread, meanwhile
                self.close()

    def close(self) -> None:
        """End the text here; ``result`` stays.

        Another thread that runs a step just now ends it after this step.
        """
        self._ended = True
        if self._turn.acquire(blocking=False):
            try:
                self._pieces.close()
            finally:
                self._turn.release()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def result(self) -> Generation:
        """The text so far, or the whole of it once the iteration is over."""
        reason = "stop" if self._builder.stopped else self.sequence.finish_reason or "length"
        model, method = self._names
        tokens = list(self._builder.tokens)
        told = None
        if self.sequence.options.logprobs is not None:
            told = [each for step in self.steps for each in step.logprobs or ()]
        stats = Stats.of(self.steps)
        return Generation(self._builder.text, tokens, reason, model, method, stats, told)

    def take(self, step: Step) -> None:
        """Take a step of the text from a batch that runs it in the place of the iteration."""
        self.steps.append(step.without_probs())

    def finish(self) -> Generation:
        """The whole text, once such a batch has ended it."""
        self._builder.finish()
        return self.result


def _pieces(
    sequence: Sequence, builder: TextBuilder, steps: list[Step]
) -> Generator[str, None, None]:
    """Text as it is accepted, and the steps it took."""
    with closing(run_all([sequence])) as run:
        for _, step in run:
            steps.append(step.without_probs())
            if piece := builder.new_text():
                yield piece
    builder.finish()
    if piece := builder.new_text(final=True):
        yield piece
