"""Writers: a model with its own cache, which first reads what others wrote."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol

from draftwood.engine import run_all
from draftwood.engine.logprobs import token_logprobs
from draftwood.loading.vocabulary import vocabulary_digest
from draftwood.models.model import Model, ModelSession, PrefixStore, extend_in_chunks
from draftwood.sampling_params import SamplingParams
from draftwood.stats import Stats, Step
from draftwood.text import prompts
from draftwood.text.builder import TextBuilder
from draftwood.text.language_model import LanguageModel
from draftwood.together import clock
from draftwood.tokenizer import AnyTokenizer
from draftwood_choices.collaboration.cost import WriterCost
from draftwood_choices.collaboration.passages import Passage, WrittenToken
from draftwood_choices.collaboration.seams import continued

NEWEST = 16
"""Tokens that tell whether the last of them leave a character open."""
LONGEST_CHARACTER = 4
"""Bytes of a character at most, and so tokens that tell none of it."""


class WriterLostError(OSError):
    """A writer cannot go on; what it wrote stays."""


class PassageWriter(Protocol):
    """Adds passages to a text.

    Attributes:
        cost: so far; ``kept`` and ``dropped`` are counted by who decides what stays.
        tells: True if it tells of its distributions.
        vocabulary: of its token ids; None where it sends texts.
    """

    cost: WriterCost

    @property
    def tells(self) -> bool: ...

    @property
    def vocabulary(self) -> str | None: ...

    def write(
        self, passages: Sequence[Passage], most: int, seed: int, reads: bool
    ) -> Iterator[WrittenToken]:
        """Go on behind these passages; whoever has enough closes the iterator.

        Raises:
            WriterLostError: where it cannot go on.
        """
        ...

    def room(self, passages: Sequence[Passage]) -> int | None:
        """Tokens that its context holds behind these passages; None for no limit that it knows."""
        ...

    def judge(self, passages: Sequence[Passage]) -> float:
        """Mean log-probability of the newest passage's tokens, in nats.

        Where it goes on inside a word, of all tokens from the one on that it changes; 0 for a
        passage without tokens.
        """
        ...

    def close(self) -> None: ...


class KeptSession:
    """Cache of one text from turn to turn; implements ``PrefixStore``.

    Tokens that a turn shares with the one before are not computed again.

    Args:
        model: that reads and writes the text.
        shared: keeps the prompt for other texts.
        prompt: its number of tokens.
    """

    def __init__(self, model: Model, shared: PrefixStore | None = None, prompt: int = 0) -> None:
        self.model, self.shared, self.prompt = model, shared, prompt
        self.session: ModelSession | None = None
        self.tokens: list[int] = []

    def start(self, prompt: Sequence[int], salt: str = "") -> tuple[ModelSession, int]:
        if self.session is None:
            return (self.model.start(), 0) if self.shared is None else self.shared.start(prompt)
        known = min(_common(self.tokens, prompt), len(prompt) - 1)
        session, self.session = self.session, None
        session.rewind(session.length - known)
        return session, known

    def shared_blocks(self, prompt: Sequence[int], salt: str = "") -> int:
        """Promise none: each turn counts all that it may take."""
        return 0

    def go_on(self, session: ModelSession, prompt: Sequence[int], salt: str = "") -> int:
        """Leave a session where it is; gives its length."""
        return session.length

    def remember(self, session: ModelSession, tokens: Sequence[int], salt: str = "") -> None:
        if self.shared is not None and not self.tokens:
            self.shared.remember(session, tokens[: self.prompt])
        self.close()
        self.session, self.tokens = session.fork(), list(tokens)

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
        self.session = None


class LocalWriter:
    """A language model as a writer; it drafts losslessly by its own method.

    Args:
        lm: writes.
        prompt: as ``LanguageModel.stream`` takes it.
        params: options of the text, of which seed, length and log-probabilities are each turn's.
        shared: keeps prompts for other texts.
    """

    tells = True

    def __init__(
        self,
        lm: LanguageModel,
        prompt: prompts.Prompt | prompts.Tokens,
        params: SamplingParams,
        shared: PrefixStore | None = None,
    ) -> None:
        self.lm, self.params, self.cost = lm, params, WriterCost()
        tokens = prompts.token_ids(prompt)
        self.prompt = lm.encode(prompt, params.raw) if tokens is None else tokens  # type: ignore[arg-type]
        self.vocabulary = vocabulary_digest(lm.tokenizer)
        self.kept = KeptSession(lm.model, shared, len(self.prompt))
        self._read: list[tuple[Passage, list[int]]] = []  # with all tokens of the answer behind it

    def tokens(self, passages: Sequence[Passage]) -> list[int]:
        """Encode the answer up to here in this writer's tokens."""
        read = self._read
        while read and (len(read) > len(passages) or read[-1][0] is not passages[len(read) - 1]):
            read.pop()
        for passage in passages[len(read) :]:
            before = read[-1][1] if read else []
            same = passage.vocabulary == self.vocabulary
            more = [*before, *passage.ids] if same else self._continued(before, passage.text)
            read.append((passage, more))
        return read[-1][1] if read else []

    def _continued(self, tokens: list[int], text: str) -> list[int]:
        return continued(self.lm.tokenizer, tokens, text) if text else tokens

    def room(self, passages: Sequence[Passage]) -> int | None:
        limit = self.lm.model.context_length
        return None if limit is None else limit - len(self.prompt) - len(self.tokens(passages))

    def write(
        self, passages: Sequence[Passage], most: int, seed: int, reads: bool
    ) -> Iterator[WrittenToken]:
        began, answer, steps = clock(), self.tokens(passages), list[Step]()
        of_turn: dict[str, Any] = {"max_new_tokens": most, "seed": seed}
        of_turn["logprobs"] = 0 if reads else None
        params = replace(self.params, **of_turn)
        before = [*self.prompt, *answer]
        sequence = self.lm.stream(before, params, prefixes=self.kept).sequence
        sequence.tell_within = 0.0  # the rule may end the turn after any step
        told = len(before) - _untold(self.lm.tokenizer, answer)
        builder = TextBuilder(self.lm.tokenizer, behind=before[:told])
        builder.add(before[told:])
        with closing(run_all([sequence])) as running:
            try:
                for _, step in running:
                    steps.append(step.without_probs())
                    likely = step.logprobs or [None] * len(step.tokens)
                    for token, of in zip(step.tokens, likely, strict=True):
                        builder.add([token])
                        is_end = token in sequence.options.stop_tokens
                        more = (None, None) if of is None else (of.logprob, of.entropy)
                        yield WrittenToken(builder.new_text(), token, *more, is_end)
            finally:
                self._count(steps, len(sequence.prompt), sequence.prefill.reused)
                self.cost.seconds += clock() - began

    def _count(self, steps: Sequence[Step], read: int, reused: int) -> None:
        """Count a turn.

        Args:
            steps: of the turn.
            read: tokens of prompt and answer before it.
            reused: of these, known before; where others' texts brought the prompt, that costs as if
                it had been read.
        """
        stats, cost = Stats.of(steps), self.cost
        cost.passes += stats.prefills + stats.target_runs
        if not cost.prompt:
            cost.prompt = reused = len(self.prompt)
        else:
            reused += 1  # the newest token, which any pass would have run
        cost.caught_up += max(0, read - reused)

    def judge(self, passages: Sequence[Passage]) -> float:
        began, behind = clock(), self.tokens(passages[:-1])
        answer = self.tokens(passages)
        before = _common(behind, answer)
        if before == len(answer):
            return 0.0
        tokens, first = [*self.prompt, *answer], len(self.prompt) + before
        session, known = self.kept.start(tokens[:first])
        with closing(session):
            if known < first - 1:
                extend_in_chunks(session, tokens[known : first - 1])
            rows = session.extend(tokens[first - 1 : -1], "all").rows
            self.kept.remember(session, tokens[:-1])
        found = token_logprobs(answer[before:], rows, 0)
        self._count([], len(tokens), known)
        self.cost.passes += 1 + (known < first - 1)
        self.cost.seconds += clock() - began
        return sum(each.logprob for each in found) / len(found)

    def close(self) -> None:
        self.kept.close()


def _untold(tokenizer: AnyTokenizer, answer: Sequence[int]) -> int:
    """Count the newest tokens whose text nobody has told, as a character lacks bytes yet."""
    newest, most = answer[-NEWEST:], min(len(answer), LONGEST_CHARACTER)
    for count in range(most):
        if not TextBuilder.whole(tokenizer, newest[: len(newest) - count]).endswith("\ufffd"):
            return count
    return most


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the tokens that two texts begin with alike."""
    same = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        same += 1
    return same
