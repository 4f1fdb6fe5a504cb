"""Answers read as they come: a thought, what is said, and calls of tools."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftwood.text.builder import TextBuilder
from draftwood_serve.tool_calls import (
    CallDelta,
    ContentDelta,
    ToolCall,
    ToolReader,
    certain,
    gathered,
)

Tags = tuple[str, str, bool, str]
"""Tags around a thought, whether the text begins within it, and what an answer without one begins
with: a ``draftwood.text.thoughts.Thought``."""


@dataclass(frozen=True)
class ThoughtDelta:
    """More of the thought before an answer."""

    text: str


Delta = ThoughtDelta | ContentDelta | CallDelta


class AnswerReader:
    """Splits a text into a thought, content and calls, piece by piece.

    A thought begins with the text, or was begun by the prompt. Blanks around it are left out; what
    may yet be a tag is held back. The tags are content everywhere else.

    Args:
        calls: whether the text may hold calls of tools.
        thought: tags of a thought; None for a model that has none.

    Attributes:
        content_from: characters of the text before its content; None as long as there is none.
    """

    def __init__(self, calls: bool, thought: Tags | None = None) -> None:
        self._tools = ToolReader() if calls else None
        self._opening, self._closing, is_open, self._answer = thought or ("", "", False, "")
        self._phase = "content" if thought is None else "thought" if is_open else "before"
        self.content_from: int | None = None if thought else 0
        self._held = ""
        self._read, self._is_begun = 0, False

    @property
    def says_all(self) -> bool:
        """True where all that comes is content, for certain."""
        return self._tools is None and self._phase == "content"

    @property
    def calls(self) -> int:
        """Calls that are whole."""
        return 0 if self._tools is None else self._tools.calls

    @property
    def is_thinking(self) -> bool:
        """True within the thought."""
        return self._phase == "thought"

    def feed(self, text: str, is_last: bool = False) -> list[Delta]:
        """Read more of the text.

        Args:
            is_last: whether it ends here, so that all is told.
        """
        found: list[Delta] = []
        if self._phase != "content":
            self._read += len(text)
            self._held += text
            text = self._read_thought(found, is_last)
        if self._tools is None:
            found += [ContentDelta(text)] if text else []
            return found
        found += self._tools.feed(text)
        return found + self._tools.finish() if is_last else found

    def _read_thought(self, found: list[Delta], is_last: bool) -> str:
        """Move on as far as is certain; return what is content."""
        if self._phase == "before":
            begun = self._held.lstrip()
            if begun.startswith(self._opening):
                self._held, self._phase = begun[len(self._opening) :], "thought"
            elif self._answer and begun.startswith(self._answer):
                self._held, self._phase = begun[len(self._answer) :], "behind"
            elif is_last or not any(tag.startswith(begun) for tag in (self._opening, self._answer)):
                return self._all_content()
        if self._phase == "thought":
            self._tell_thought(found, is_last)
        if self._phase == "behind" and (self._held.strip() or is_last):
            self._held = self._held.lstrip()
            return self._all_content()
        return ""

    def _tell_thought(self, found: list[Delta], is_last: bool) -> None:
        held = self._held if self._is_begun else self._held.lstrip()
        thought, closing, rest = held.partition(self._closing)
        told = (thought if closing or is_last else certain(thought, self._closing)).rstrip()
        if told:
            found.append(ThoughtDelta(told))
            self._is_begun = True
        self._held = rest if closing else held[len(told) :]
        if closing:
            self._phase = "behind"

    def _all_content(self) -> str:
        text, self._held, self._phase = self._held, "", "content"
        self.content_from = self._read - len(text)
        return text


class ThoughtCounter:
    """Counts the tokens of a thought, of texts that come by several tokens.

    Args:
        builder: of the text, with no tokens yet.
        thought: tags of the thought.
    """

    def __init__(self, builder: TextBuilder, thought: Tags) -> None:
        self._builder, self._reader = builder, AnswerReader(False, thought)
        self._closing = thought[1]
        self._ends = list[int]()  # of the thought's tokens, in characters of the text

    @property
    def tokens(self) -> int:
        """Tokens of the thought so far, without those of its tags once these are whole."""
        return len(self._ends)

    def count(self, tokens: Sequence[int]) -> None:
        """Take all tokens of the text so far."""
        for token in tokens[len(self._builder.tokens) :]:
            if self._reader.says_all:
                return
            before, thought = len(self._builder.text), self._reader.is_thinking
            self._builder.add([token])
            self._reader.feed(self._builder.text[before:])
            if thought and self._reader.is_thinking:
                self._ends.append(len(self._builder.text))
            elif thought:
                end = self._builder.text.index(self._closing)
                self._ends = [each for each in self._ends if each <= end]


def read_answer(reader: AnswerReader, text: str) -> tuple[str, str, list[ToolCall]]:
    """Split a whole text into its thought, its content and its calls."""
    deltas = reader.feed(text, is_last=True)
    told = "".join(each.text for each in deltas if isinstance(each, ThoughtDelta))
    return told, *gathered(deltas)
