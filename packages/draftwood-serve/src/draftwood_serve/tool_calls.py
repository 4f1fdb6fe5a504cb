"""Calls of tools in a text, read as the text comes."""

import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from draftwood.grammar import Tool

OPEN, CLOSE = Tool.opening, Tool.closing
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([\w-]{1,64})"\s*,\s*"arguments"\s*:\s*(?=\{)', re.A)
_SHORTEST_HEAD = '{"name":"a","arguments":{'
"""A head and the sign behind it; some end of it completes each beginning of a head."""
_LONGEST_HEAD = 400  # characters, after which a head that did not match never will


@dataclass(frozen=True)
class ContentDelta:
    """More of the text outside of calls."""

    text: str


@dataclass(frozen=True)
class CallDelta:
    """More of a call.

    Attributes:
        index: which call, from 0 on.
        id: of the call, with its first delta alone.
        name: of the tool, likewise.
        arguments: the next characters of its arguments.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True)
class ToolCall:
    """A call; its arguments are JSON where it is whole."""

    id: str
    name: str
    arguments: str

    @property
    def is_whole(self) -> bool:
        """True if the text was not cut inside its arguments."""
        value = _JsonValue()
        value.read(self.arguments)
        return value.whole


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


@dataclass
class ToolReader:
    """Splits a text into content and calls, piece by piece.

    A possible beginning of a tag is held back until it is decided, and blanks around calls are left
    out. A tag is content where no call begins behind it: a name and an object of arguments.

    Args:
        new_id: names a call.
    """

    new_id: Callable[[], str] = _new_id
    calls: int = 0
    _held: str = ""
    _blanks: str = ""  # before a tag, content where no call begins behind it
    _phase: str = "content"  # then "head", "arguments", "end"
    _value: "_JsonValue" = field(default_factory=lambda: _JsonValue())

    def feed(self, text: str) -> list[ContentDelta | CallDelta]:
        """Read more of the text."""
        self._held += text
        deltas: list[ContentDelta | CallDelta] = []
        read = {
            "content": self._content,
            "head": self._head,
            "arguments": self._arguments,
            "end": self._end,
        }
        while read[self._phase](deltas):
            pass
        return deltas

    def finish(self) -> list[ContentDelta | CallDelta]:
        """Release what was held back, once the text is over, but the beginning of a call."""
        held, phase, self._held = self._held, self._phase, ""
        if phase == "head":
            return [] if _begins_head(held) else [ContentDelta(self._blanks + OPEN + held)]
        held = certain(held)
        if phase == "content" and (held.strip() or (held and not self.calls)):
            return [ContentDelta(held)]
        return []

    def _content(self, deltas: list[ContentDelta | CallDelta]) -> bool:
        before, found, rest = self._held.partition(OPEN)
        if found:
            said = before.rstrip()
            if said:
                deltas.append(ContentDelta(said))
            self._held, self._blanks, self._phase = rest, before[len(said) :], "head"
            return True
        length = len(certain(self._held).rstrip())
        if length:
            deltas.append(ContentDelta(self._held[:length]))
            self._held = self._held[length:]
        return False

    def _head(self, deltas: list[ContentDelta | CallDelta]) -> bool:
        head = _HEAD.match(self._held)
        if head is None:
            if CLOSE in self._held or len(self._held) > _LONGEST_HEAD:
                deltas.append(ContentDelta(self._blanks + OPEN))
                self._phase = "content"
                return True
            return False
        deltas.append(CallDelta(self.calls, self.new_id(), head[1]))
        self._held, self._phase, self._value = self._held[head.end() :], "arguments", _JsonValue()
        return True

    def _arguments(self, deltas: list[ContentDelta | CallDelta]) -> bool:
        length = self._value.read(self._held)
        if length:
            deltas.append(CallDelta(self.calls, arguments=self._held[:length]))
            self._held = self._held[length:]
        if self._value.whole:
            self.calls, self._phase = self.calls + 1, "end"
            return True
        return False

    def _end(self, deltas: list[ContentDelta | CallDelta]) -> bool:
        _, found, rest = self._held.partition(CLOSE)
        if not found:
            return False
        self._held, self._phase = rest, "content"
        return True


class _JsonValue:
    """Finds the end of an object in JSON that comes in pieces."""

    def __init__(self) -> None:
        self.whole = False
        self._depth, self._in_string, self._escaped = 0, False, False

    def read(self, text: str) -> int:
        """Count the next characters that belong to the value."""
        for place, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
                continue
            if character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    self.whole = True
                    return place + 1
        return len(text)


def certain(text: str, tag: str = OPEN) -> str:
    """Text without a possible beginning of a tag at its end."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return text[:-length]
    return text


def _begins_head(text: str) -> bool:
    """True if more text can make it the head of a call."""
    ends = (_SHORTEST_HEAD[place:] for place in range(len(_SHORTEST_HEAD)))
    return any(_HEAD.match(text + end) for end in ends)


def read_calls(text: str, new_id: Callable[[], str] = _new_id) -> tuple[str, list[ToolCall]]:
    """Split a whole text into its content and its calls, in order."""
    reader = ToolReader(new_id)
    return gathered([*reader.feed(text), *reader.finish()])


def gathered(deltas: Iterable[object]) -> tuple[str, list[ToolCall]]:
    """The content and the calls of which these tell; other things are passed over."""
    content: list[str] = []
    calls: list[ToolCall] = []
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            content.append(delta.text)
        elif isinstance(delta, CallDelta) and delta.id is not None and delta.name is not None:
            calls.append(ToolCall(delta.id, delta.name, delta.arguments))
        elif isinstance(delta, CallDelta):
            last = calls[-1]
            calls[-1] = ToolCall(last.id, last.name, last.arguments + delta.arguments)
    return "".join(content), calls
