"""Texts of a request while they are written: what each step sends, and when."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from draftwood import engine
from draftwood.stats import Stats, Step, TokenLogprob
from draftwood.text.builder import TextBuilder


@dataclass(frozen=True)
class ToldToken:
    """Token with its log-probability, sent with the text that it belongs to.

    Attributes:
        start: characters of the answer before its text.
    """

    logprob: TokenLogprob
    start: int


@dataclass(frozen=True)
class TracedStep:
    """Step that is sent with its tree.

    Attributes:
        step: without the rows that its tree was drawn from.
        at: when it was over, in seconds of ``time.perf_counter``.
    """

    step: Step
    at: float


@dataclass(frozen=True)
class TextUpdate:
    """Output of one step for one text.

    Attributes:
        choice: number of the text within its request.
        text: new characters of it.
        told: log-probabilities of the tokens whose text is released.
        tokens: emitted so far.
        finish_reason: with the last update.
        traced: the step itself, where the request asked for trees.
    """

    choice: int
    text: str
    told: tuple[ToldToken, ...]
    tokens: int
    finish_reason: str | None = None
    traced: TracedStep | None = None


@dataclass(frozen=True)
class PromptText:
    """A prompt as text, with its special tokens but for the one that begins texts.

    Attributes:
        starts: characters before the text of each token.
    """

    text: str
    starts: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Any, tokens: Sequence[int]) -> "PromptText":
        begin = getattr(tokenizer, "bos_token_id", None)
        count = int(begin is not None and tokens[:1] == [begin])
        builder, starts = TextBuilder(tokenizer, shows_special=True), [0] * count
        for token in tokens[count:]:
            starts.append(builder.start_of(token))
        builder.finish()
        return cls(builder.text, tuple(starts))


class Choice:
    """One text of a request.

    Args:
        sequence: the text as it is written.
        thought: tags of a thought that it may begin with, and whether the prompt opened it.

    Attributes:
        number: among the request's texts.
        prompt_text: of the prompt, if it is to be echoed.
        stats: what it took so far.
        first: tokens of its first step, which are there at once.
        began, newest: when its first and newest steps were over, in seconds of
            ``time.perf_counter``; 0 before.
        accepted, drafted: draft tokens of each step.
        traced: whether updates carry their steps.
    """

    def __init__(
        self, sequence: engine.Sequence, thought: tuple[str, str, bool, str] | None = None
    ) -> None:
        self.number, self.sequence, self.thought = 0, sequence, thought
        self.builder = next(each for each in sequence.stops if isinstance(each, TextBuilder))
        self.prompt_text: PromptText | None = None
        self.stats, self.first = Stats(), 0
        self.began = self.newest = 0.0
        self.accepted: list[int] = []
        self.drafted: list[int] = []
        self.traced = False
        self._logprobs = _HeldLogprobs(self.builder)
        self._released = 0  # characters

    @property
    def finished(self) -> bool:
        return self.sequence.finish_reason is not None

    @property
    def details(self) -> Mapping[str, object] | None:
        """More that a package's method tells of the text; None for a text of the engine's loop."""
        return getattr(self.sequence, "details", None)

    @property
    def prompt_logprobs(self) -> Sequence[TokenLogprob | None]:
        return self.sequence.prompt_logprobs

    def take(self, step: Step, is_last: bool = True) -> TextUpdate:
        """Count a step; return its update.

        Args:
            is_last: False where the text has made further steps already, which are yet to come.
        """
        self.first, self.newest = self.first or len(step.tokens), perf_counter()
        self.began = self.began or self.newest
        self.stats.add(step)
        if not step.is_prefill:
            self.accepted.append(step.accepted)
            self.drafted.append(step.drafted)
        self._logprobs.add(step.logprobs or ())
        reason = self.sequence.finish_reason if is_last else None
        if reason is not None:
            self.builder.finish()
        piece = self.builder.new_text(final=reason is not None)
        self._released += len(piece)
        told = tuple(self._logprobs.release(self._released, final=reason is not None))
        if self.builder.stopped and is_last:
            reason = "stop"
        traced = TracedStep(step.without_probs(), self.newest) if self.traced else None
        return TextUpdate(self.number, piece, told, len(self.builder.tokens), reason, traced)


class _HeldLogprobs:
    """Log-probabilities that wait until the text of their tokens is released."""

    def __init__(self, builder: TextBuilder) -> None:
        # the text without stop strings, a token at a time
        self._own = builder.without_stops()
        self._of = builder
        self._held: deque[ToldToken] = deque()
        self._ends: deque[int] = deque()

    def add(self, logprobs: Sequence[TokenLogprob]) -> None:
        for each in logprobs:
            self._held.append(ToldToken(each, self._own.start_of(each.token)))
            self._ends.append(len(self._own.text))

    def release(self, characters: int, final: bool) -> Iterator[ToldToken]:
        """Release tokens whose text is among the first ``characters``; at the end of the text all
        that belong to it, its end token too.
        """
        cut = self._of.stopped and len(self._of.text) < len(self._own.text)
        while self._held:
            within = self._ends[0] <= characters and self._held[0].start < characters
            last = final and not (cut and self._held[0].start >= characters)
            if not (within or last):
                if final:
                    self._held.clear()
                return
            self._ends.popleft()
            yield self._held.popleft()
