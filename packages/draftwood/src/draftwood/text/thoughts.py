"""Thoughts that models write before they answer, in tags such as ``<think>``."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from draftwood.engine.constraint import Constraint
from draftwood.grammar.grammar import Grammar
from draftwood.tokenizer.chat_template import every
from draftwood.tokenizer.protocol import AnyTokenizer

TAG = r"((?:\w+:)?think(?:ing)?)>"
OPEN, ANY = re.compile(rf"<{TAG}\s*\Z"), re.compile(f"</?{TAG}")
BEGINS, ENDS = re.compile(rf"\s*<{TAG}"), re.compile(f"</{TAG}")
TAIL = 16
"""Last tokens of a prompt, among which the tag of a thought is."""


class Thought(NamedTuple):
    """Tags of a thought before an answer.

    Attributes:
        opening, closing: what stands before and behind it.
        is_open: whether the prompt ends with the opening tag, so that the text begins within.
    """

    opening: str
    closing: str
    is_open: bool

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, prompt: Sequence[int]) -> "Thought | None":
        """Tags with which a text behind a prompt may begin; None where no template knows any."""
        name = _opened(tokenizer, prompt)
        named = ANY.search(" ".join(every(tokenizer.chat_template)))
        if name is None and named is None:
            return None
        tag = name or (named[1] if named else "")
        return cls(f"<{tag}>", f"</{tag}>", name is not None)


def _opened(tokenizer: AnyTokenizer, prompt: Sequence[int]) -> str | None:
    """Name of the tag with which a prompt ends; None where it opens no thought."""
    end = str(tokenizer.decode(list(prompt[-TAIL:]), skip_special_tokens=False))
    found = OPEN.search(end)
    return None if found is None else found[1]


def with_closed_thought(
    tokenizer: AnyTokenizer, prompt: Sequence[int], constraint: Constraint
) -> list[int]:
    """Close a thought at the end of a prompt, where a grammar leaves no place for one.

    Else JSON would be written as a thought. The tags stand as where templates think nothing.
    """
    tokens = list(prompt)
    if isinstance(constraint, Grammar) and constraint.begins_at_once:
        name = _opened(tokenizer, tokens)
        if name is not None:
            closing = f"\n</{name}>\n\n"
            tokens += tokenizer(closing, add_special_tokens=False)["input_ids"]
    return tokens
