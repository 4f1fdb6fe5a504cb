"""Ends of sentences and steps, found in text: a token may hold more than an end, or part of one."""

import re
from collections.abc import Callable

from draftwood_choices.collaboration.passages import Passage, Until

SENTENCE = re.compile(r"[.?!…。！？]+[\"'”’»)\]*_]*|\n+")  # noqa: RUF001
STEP = re.compile(r"\n[ \t]*\n\s*")

End = Callable[[str, int], int | None]
"""Place behind the first end at or after a place; None where there is none yet."""


def sentence_end(text: str, start: int) -> int | None:
    """Find the first end of a sentence, which is a mark or a line break behind some text.

    No mark ends a sentence inside a word or a number, as in 3.14, and none behind the number of a
    list, as in ``2. Whisk``. Behind a digit the next character decides, so that a text that breaks
    off there has no end yet.

    Example:
        In "It is 3.5 m. Wide" the first end from 0 is 12, behind the "m.".
    """
    for mark in SENTENCE.finditer(text, start):
        if text[start : mark.start()].strip() and _ends(text, mark):
            return mark.end()
    return None


def _ends(text: str, mark: re.Match[str]) -> bool:
    if mark[0].startswith("\n"):
        return True
    follows, before = text[mark.end() : mark.end() + 1], text[: mark.start()]
    if follows and not follows.isspace():
        return False
    if mark[0] != "." or not before[-1:].isdigit():
        return True
    return bool(follows) and not before.rpartition("\n")[2].strip().isdigit()


def step_end(text: str, start: int) -> int | None:
    """Find the first blank line behind some text.

    Example:
        In "2 + 2 = 4\\n\\nSo" the end from 0 is 11.
    """
    for blank in STEP.finditer(text, start):
        if text[start : blank.start()].strip():
            return blank.end()
    return None


def until(end: End, start: int) -> Until:
    """End a passage with the token that reaches the first end behind a place of the answer."""

    def reached(passage: Passage) -> int | None:
        place = end(passage.behind, start)
        return None if place is None else passage.reaching(place)

    return reached
