"""A prompt, with what tells whether an answer to it is right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, str]


def number_of(text: str) -> float:
    """The number that a text is, its thousands marked by commas or not.

    Raises:
        ValueError: for a text that is none.
    """
    return float(text.replace(",", ""))


@dataclass(frozen=True)
class Instruction:
    """Rule for an answer that a program can check (IFEval, arXiv 2311.07911).

    Attributes:
        name: of its kind, ``punctuation:no_comma`` for instance.
        options: of the kind.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Prompt:
    """One conversation to answer.

    Attributes:
        id: unique within its set.
        category: results are grouped by category.
        turns: messages of the user, in order.
        before: messages before the first turn.
        reference: an answer by hand, which the quality score compares with.
        answer: the number that a right answer ends with.
        instructions: that a right answer follows.
        first_tokens: not a question but the beginning of a text, cut to so many tokens and
            continued as it is.
        next_word: with which the beginning of a text goes on, that is continued as it is.
        tests: Python that runs behind the code of a right answer.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    before: tuple[tuple[str, str], ...] = ()
    reference: str | None = None
    answer: str | None = None
    instructions: tuple[Instruction, ...] = ()
    first_tokens: int | None = None
    next_word: str | None = None
    tests: str | None = None

    @property
    def is_beginning(self) -> bool:
        """True for the beginning of a text, which is continued without a chat template."""
        return self.first_tokens is not None or self.next_word is not None

    def messages(self, answers: Sequence[str]) -> list[Message]:
        """The conversation up to the turn after these answers."""
        found = [{"role": role, "content": content} for role, content in self.before]
        for turn, answer in zip(self.turns, answers, strict=False):
            found += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
        return [*found, {"role": "user", "content": self.turns[len(answers)]}]
