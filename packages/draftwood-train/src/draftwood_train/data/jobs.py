"""Texts to write for each prompt: the target's answers, and half of the prompts themselves.

Fed with the chat template up to the beginning of the user's turn, a chat model says what users
would (Xu et al. 2024, arXiv:2406.08464).
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from draftwood.text.builder import TextBuilder
from draftwood.text.language_model import LanguageModel
from draftwood_train.data.barred import words
from draftwood_train.data.options import DataOptions
from draftwood_train.data.prompts import CollectedPrompt, number_of
from draftwood_train.data.states import PlaceStates
from draftwood_train.data.texts import TopTokens
from draftwood_train.data.write import Request, Written

OWN, SECOND_TURN = "own", "second turn"
ATTEMPTS = 4
LONGEST_TURN = 160  # tokens; a longer turn is rarely a question
SHORTEST = 8  # characters
LOOP = 4  # words of a repeated run
LEAST_DISTINCT = 0.6  # share of such runs that differ, in a text that goes round in no circles


@dataclass(frozen=True, eq=False)
class MadeText:
    """A prompt and one answer, as a shard stores it; of a chat all turns are the prompt."""

    prompt: str
    source: str
    tokens: tuple[int, ...]
    answer: int
    is_greedy: bool
    states: PlaceStates | None
    top: TopTokens | None
    kind: str
    held_out: bool


@dataclass(frozen=True)
class UserTurn:
    """Tokens of the chat template before the user's turn, and those that end it."""

    before: tuple[int, ...]
    ends: frozenset[int]

    @classmethod
    def of(cls, lm: LanguageModel) -> "UserTurn":
        """Find the tokens by a mark in place of the user's text.

        Raises:
            ValueError: where the model has no chat template, or the turn begins without a token.
        """
        if lm.tokenizer.chat_template is None:
            raise ValueError(
                f"{lm.name} has no chat template, so it cannot write prompts itself; take"
                " --self-written 0"
            )
        mark = "draftwoodmark"
        text = str(
            lm.tokenizer.apply_chat_template(
                [{"role": "user", "content": mark}], tokenize=False, add_generation_prompt=True
            )
        )
        before, found, after = text.partition(mark)
        tokens = [
            tuple(lm.tokenizer(part, add_special_tokens=False)["input_ids"])
            for part in (before, after)
        ]
        if not found or not all(tokens):
            raise ValueError(
                f"the chat template of {lm.name} does not mark where the user's turn begins and"
                " ends, so the model cannot write prompts itself; take --self-written 0"
            )
        return cls(tokens[0], lm.end_tokens | {tokens[1][0]})


def goes_in_circles(text: str) -> bool:
    """True if runs of words repeat so often that the text is of little use."""
    said = words(text)
    found = [tuple(said[place : place + LOOP]) for place in range(len(said) - LOOP + 1)]
    return len(found) > LOOP and len(set(found)) < LEAST_DISTINCT * len(found)


def is_usable(text: str) -> bool:
    """True if a prompt that the target wrote is worth an answer."""
    return len(text) >= SHORTEST and "\ufffd" not in text and not goes_in_circles(text)


class Jobs:
    """The jobs of a data set, by number: a prompt each, collected or the target's own.

    Every draw of a text depends on the seed and on the numbers of prompt and answer alone.

    Args:
        lm: the target with its tokenizer.
        options: see there.
        collected: prompts in the order in which they are taken.
    """

    def __init__(
        self, lm: LanguageModel, options: DataOptions, collected: Sequence[CollectedPrompt]
    ) -> None:
        self.lm, self.options, self.collected = lm, options, collected
        self._turn = UserTurn.of(lm) if options.self_written else None
        if self._turn is not None and len(self._turn.before) >= options.max_prompt_tokens:
            raise ValueError(
                f"the chat template alone takes {len(self._turn.before)} tokens of a prompt; raise"
                " --max-prompt, or take --self-written 0"
            )
        self._special = frozenset(lm.tokenizer.all_special_ids)

    def job(self, number: int) -> Generator[Request, Written, list[MadeText]] | None:
        """The job of this number; None where the collected prompts have run out."""
        own_before, own_after = (self._own_before(each) for each in (number, number + 1))
        if own_after > own_before:
            return self._own(number)
        place = number - own_before
        if place >= len(self.collected):
            return None
        prompt = self.collected[place]
        return self._chat(number, prompt)

    def _own_before(self, number: int) -> int:
        return int(number * self.options.self_written + 1e-9)

    def _own(self, number: int) -> Generator[Request, Written, list[MadeText]]:
        assert self._turn is not None
        longest = min(LONGEST_TURN, self.options.max_prompt_tokens - len(self._turn.before))
        for attempt in range(ATTEMPTS):
            seed = number_of(self.options.seed, "prompt", number, attempt)
            written = yield Request(
                self._turn.before, longest, self._turn.ends, seed, keeps_states=False
            )
            *turn, last = written.tokens[written.start :]
            if last not in self._turn.ends or not self._special.isdisjoint(turn):
                continue
            decoded = self.lm.tokenizer.decode(turn, clean_up_tokenization_spaces=False)
            text = str(decoded).strip()
            if is_usable(text):
                return (yield from self._chat(number, CollectedPrompt(text, OWN)))
        return []

    def _chat(
        self, number: int, prompt: CollectedPrompt
    ) -> Generator[Request, Written, list[MadeText]]:
        """Answers to a prompt, then to each of its follow-ups about the answer before."""
        if not prompt.text:
            return []
        made = yield from self._answers(number, prompt, prompt.text, self._encoded(prompt.text))
        messages, asked = [{"role": "user", "content": prompt.text}], prompt.text
        for turn, follow_up in enumerate(prompt.follow_ups, start=1):
            if not made or self.lm.tokenizer.chat_template is None:
                break
            messages += [
                {"role": "assistant", "content": self._answer(made[-1])},
                {"role": "user", "content": follow_up},
            ]
            asked = f"{asked}\n\n{follow_up}"
            later = replace(prompt, kind=SECOND_TURN)
            tokens = self.lm.encode(messages)
            more = yield from self._answers(number, later, asked, tokens, turn)
            if not more:
                break
            made += more
        return made

    def _answer(self, text: MadeText) -> str:
        prompt, answer = list(text.tokens[: text.answer]), text.tokens[text.answer :]
        whole = TextBuilder.whole(self.lm.tokenizer, answer, shown=self.lm.shown_tokens)
        return self.lm.said(whole, prompt).strip()

    def _answers(
        self,
        number: int,
        prompt: CollectedPrompt,
        asked: str,
        encoded: Sequence[int],
        turn: int = 0,
    ) -> Generator[Request, Written, list[MadeText]]:
        options, tokens = self.options, tuple(encoded)
        if len(tokens) > options.max_prompt_tokens:
            return []
        made = []
        for answer in range(options.answers_per_prompt):
            seed = number_of(options.seed, "answer", number, answer, *([turn] if turn else []))
            is_greedy = answer == 0 if options.answers_per_prompt > 1 else seed % 2 == 0
            written = yield Request(
                tokens,
                options.max_answer_tokens,
                self.lm.end_tokens,
                None if is_greedy else seed,
                keeps_states=True,
            )
            if len(written.tokens) - written.start > 1:  # more than an end of text
                made.append(
                    MadeText(
                        *(asked, prompt.source, written.tokens, written.start, is_greedy),
                        *(written.states, written.top),
                        *(prompt.kind or prompt.source, prompt.is_held_out),
                    )
                )
        return made

    def _encoded(self, text: str) -> list[int]:
        return self.lm.encode(text)
