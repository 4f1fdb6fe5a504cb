"""Thoughts that models write before they answer, in tags such as ``<think>``."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from draftwood.tokenizer.chat_template import every
from draftwood.tokenizer.protocol import AnyTokenizer

if TYPE_CHECKING:
    from draftwood.engine.constraint import Constraint

TAG = r"<((?:\w+:)?th(?:ink(?:ing)?|ought))>"
NAMED = re.compile(TAG.replace("<", "</?", 1))
TAIL = 16
"""Last tokens of a prompt, among which the tag of a thought is."""


class Tags(NamedTuple):
    """Tags around a thought.

    Attributes:
        opening, closing: before and behind it, up to the answer.
        answer: what an answer without a thought begins with.
    """

    opening: str
    closing: str
    answer: str = ""


OTHERS = (
    Tags(  # gpt-oss
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|channel|>final<|message|>",
    ),
    Tags("<|channel>thought\n", "<channel|>"),  # Gemma 4
    Tags("[THINK]", "[/THINK]"),  # Magistral, Ministral 3
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
)
"""Tags that are no element's, each known by its opening in a chat template."""


class Thought(NamedTuple):
    """Tags of a thought before an answer.

    Attributes:
        opening, closing: what stands before and behind it.
        is_open: whether the prompt ends with the opening tag, so that the text begins within.
        answer: what an answer without a thought begins with.
    """

    opening: str
    closing: str
    is_open: bool
    answer: str = ""

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, prompt: Sequence[int]) -> "Thought | None":
        """Tags with which a text behind a prompt may begin; None where no template knows any."""
        opened = _opened(tokenizer, prompt)
        tags = opened or _named(every(tokenizer.chat_template))
        return None if tags is None else cls(tags[0], tags[1], opened is not None, tags[2])

    def said(self, text: str) -> str:
        """Cut a whole text's thought off; empty where the text ends within it."""
        begun = text.lstrip()
        if self.is_open or begun.startswith(self.opening):
            return begun.partition(self.closing)[2].lstrip()
        return begun.removeprefix(self.answer) if self.answer else text


def shown_tokens(tokenizer: AnyTokenizer) -> Mapping[int, str]:
    """Special tokens in the tags of a chat template, with their texts.

    Decoding would leave them out, and thought and answer would run into one.
    """
    tags = _named(every(tokenizer.chat_template))
    if tags is None:
        return {}
    found = {}
    for token in tokenizer("".join(tags), add_special_tokens=False)["input_ids"]:
        text = str(tokenizer.decode([token], skip_special_tokens=False))
        if text and not tokenizer.decode([token], skip_special_tokens=True):
            found[token] = text
    return found


@lru_cache(maxsize=64)
def _named(templates: tuple[str, ...]) -> Tags | None:
    """Tags that templates know; None for none."""
    together = " ".join(templates)
    other = next((tags for tags in OTHERS if tags.opening.rstrip() in together), None)
    element = NAMED.search(together)
    return other or (None if element is None else _element(element[1]))


def _element(name: str) -> Tags:
    return Tags(f"<{name}>", f"</{name}>")


def _opened(tokenizer: AnyTokenizer, prompt: Sequence[int]) -> Tags | None:
    """Tags of the thought that a prompt opens at its end; None where it opens none."""
    told = str(tokenizer.decode(list(prompt[-TAIL:]), skip_special_tokens=False)).rstrip()
    element = re.search(rf"{TAG}\Z", told)
    if element is not None:
        return _element(element[1])
    return next((tags for tags in OTHERS if told.endswith(tags.opening.rstrip())), None)


def with_closed_thought(
    tokenizer: AnyTokenizer, prompt: Sequence[int], constraint: "Constraint"
) -> list[int]:
    """Close a thought at the end of a prompt, where a grammar leaves no place for one.

    Else JSON would be written as a thought. The tags stand as where templates think nothing. No
    grammar writes tags of special tokens. A prompt that ends with the tags stays as it is.
    """
    from draftwood.grammar.grammar import Grammar

    tokens, thought = list(prompt), Thought.of(tokenizer, prompt)
    if thought is None or not isinstance(constraint, Grammar):
        return tokens
    ending = thought.answer
    if thought.is_open:
        if not constraint.begins_at_once and not shown_tokens(tokenizer):
            return tokens
        is_element = thought.closing.startswith("</")
        ending = f"\n{thought.closing}\n\n" if is_element else thought.closing
    added = list(tokenizer(ending, add_special_tokens=False)["input_ids"]) if ending else []
    return tokens if tokens[len(tokens) - len(added) :] == added else tokens + added
