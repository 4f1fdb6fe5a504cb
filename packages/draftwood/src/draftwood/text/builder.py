"""From tokens to text, a few at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from weakref import WeakKeyDictionary

from draftwood.tokenizer.protocol import AnyTokenizer

TAIL = 16
"""Fewest tokens before a text that are decoded with it, so that spaces and bytes come out right."""

NO_TOKENS: Mapping[int, str] = MappingProxyType({})


@dataclass
class TextBuilder:
    """Decodes a growing list of tokens and finds the first stop string.

    Args:
        tokenizer: decodes tokens.
        stop: strings that end the text; they are not part of it. A special token, which has no text
            of its own, may be one of them.
        min_tokens: no string ends the text before so many.
        behind: tokens before the text, which decide whether it begins with a space.
        shows_special: whether special tokens are part of the text.
        shown: special tokens that are part of it all the same, with their texts.

    Attributes:
        stopped_by: the string that ended the text; empty before.

    Raises:
        ValueError: for a stop string that holds a special token and more.
    """

    tokenizer: AnyTokenizer
    stop: Sequence[str] = ()
    min_tokens: int = 0
    behind: Sequence[int] = ()
    shows_special: bool = False
    shown: Mapping[int, str] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    stopped: bool = False
    stopped_by: str = ""
    # tokens that are decoded, from far enough back for spaces and merged bytes to come out right
    _window: list[int] = field(default_factory=list)
    _done: int = 0  # tokens of the window whose text is in `text`
    _given: int = 0  # characters handed out
    _ends: dict[int, str] = field(default_factory=dict)  # special tokens among the stop strings

    def __post_init__(self) -> None:
        self.behind = self._tail(self.behind)
        self._window, self._done = [*self.behind], len(self.behind)
        special = _special_tokens(self.tokenizer) if self.stop else {}
        for stop in self.stop:
            inside = next(
                (
                    text
                    for text, token in special.items()
                    if text in stop and text != stop and token not in self.shown
                ),
                None,
            )
            if inside is not None and stop not in special:
                raise ValueError(
                    f"the stop string {stop!r} holds the special token {inside!r} and more, but"
                    f" special tokens are no part of the text; give {inside!r} alone"
                )
        self._ends = {special[stop]: stop for stop in self.stop if stop in special}

    @classmethod
    def whole(
        cls,
        tokenizer: AnyTokenizer,
        tokens: Sequence[int],
        behind: Sequence[int] = (),
        shown: Mapping[int, str] = NO_TOKENS,
    ) -> str:
        """Text of tokens that are all there."""
        builder = cls(tokenizer, behind=behind, shown=shown)
        builder.add(tokens)
        builder.finish()
        return builder.text

    def without_stops(self) -> "TextBuilder":
        """A builder of the same text, with no tokens yet, that no string ends."""
        return TextBuilder(self.tokenizer, behind=self.behind, shown=self.shown)

    @property
    def may_stop(self) -> bool:
        """True if a string or special token may end the text."""
        return bool(self.stop)

    def start_of(self, token: int) -> int:
        """Take a token; characters before its text.

        What an incomplete character before it shows, where it does not complete that, is not its
        own.
        """
        before, waits = len(self.text), self._done < len(self._window)
        self.add([token])
        shown = self.text[before:]
        return before + (len(shown) - len(shown.lstrip("\ufffd")) if waits else 0)

    def add(self, tokens: Sequence[int]) -> int:
        """Take tokens one by one until a stop string is complete; says how many were taken."""
        for taken, token in enumerate(tokens, start=1):
            self.tokens.append(token)
            self._window.append(token)
            before = len(self.text)
            may_end = len(self.tokens) > self.min_tokens
            self._decode(final=may_end and token in self._ends)
            if may_end and (self._find_stop(before) or token in self._ends):
                self.stopped, self.stopped_by = True, self.stopped_by or self._ends[token]
                return taken
        return len(tokens)

    def finish(self) -> None:
        """No more tokens will come: incomplete characters are shown as they are."""
        if not self.stopped:
            before = len(self.text)
            self._decode(final=True)
            if len(self.tokens) > self.min_tokens:
                self._find_stop(before)

    def new_text(self, final: bool = False) -> str:
        """Text not handed out yet; until the end it holds back what may become a stop string."""
        end = len(self.text)
        if not final and not self.stopped:
            end -= max((_overlap(self.text, stop) for stop in self.stop), default=0)
        piece, self._given = self.text[self._given : end], max(self._given, end)
        return piece

    def _tail(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The newest of these tokens, so many that they begin with a whole character."""
        count = TAIL
        while count < len(tokens) and "\ufffd" in self._text(list(tokens[-count:])):
            count *= 2
        return tuple(tokens[-count:])

    def _decode(self, final: bool) -> None:
        old, new = self._text(self._window[: self._done]), self._text(self._window)
        if not new.startswith(old):  # what lies behind ends within a character, which is whole now
            old = old.rstrip("\ufffd")
        # a character may lack bytes yet
        if len(new) > len(old) and (final or not new.endswith("\ufffd")):
            if self.text:
                del self._window[: self._done]
            self.text += new[len(old) :]
            self._done = len(self._window)
        elif len(self._window) > self._done and self._ends_silent():
            self._window.pop()

    def _ends_silent(self) -> bool:
        """True if decoding leaves the newest token out wherever it stands; a blank that reads as
        nothing here shows between others.
        """
        *around, token = self._window
        return not self._text([token, token]) and (
            self._text([*around, token, *around]) == self._text([*around, *around])
        )

    def _text(self, tokens: list[int]) -> str:
        if self.shown.keys().isdisjoint(tokens):
            return self._decoded(tokens)
        runs = groupby(tokens, self.shown.get)
        return "".join(text * len([*run]) if text else self._decoded([*run]) for text, run in runs)

    def _decoded(self, tokens: list[int]) -> str:
        return str(
            self.tokenizer.decode(
                tokens,
                skip_special_tokens=not self.shows_special,
                clean_up_tokenization_spaces=False,
            )
        )

    def _find_stop(self, before: int) -> bool:
        """Cut the text before the first stop string that new characters complete, if any does.

        Args:
            before: characters of the text that are not new.

        Returns:
            True if there is one.
        """
        places = [
            (self.text.find(each, max(0, before - len(each) + 1)), each) for each in self.stop
        ]
        found = [each for each in places if each[0] >= 0]
        if found:
            place, self.stopped_by = min(found)
            self.text, self.stopped = self.text[:place], True
        return self.stopped


@dataclass(frozen=True, eq=False)
class StopStrings:
    """Ends texts at the first of these strings, and builds the texts on the way.

    Args:
        tokenizer: decodes tokens.
        strings: that end a text; there may be none.
        min_tokens: no string ends a text before so many.
        behind: tokens with which the texts go on.
        shown: special tokens that are part of the texts, with what they read.
    """

    tokenizer: AnyTokenizer
    strings: Sequence[str] = ()
    min_tokens: int = 0
    behind: Sequence[int] = ()
    shown: Mapping[int, str] = field(default_factory=dict)

    def start(self) -> TextBuilder:
        return TextBuilder(
            self.tokenizer, self.strings, self.min_tokens, self.behind, shown=self.shown
        )


_special = WeakKeyDictionary[AnyTokenizer, tuple[int, dict[str, int]]]()
"""By tokenizer, its length and special tokens, of which there may be thousands."""


def _special_tokens(tokenizer: AnyTokenizer) -> dict[str, int]:
    """Tokens that decoding leaves out, by their texts; read once, and when some are added."""
    length = len(tokenizer) if hasattr(tokenizer, "__len__") else 0
    before, found = _special.get(tokenizer, (-1, {}))
    if length != before:
        added = getattr(tokenizer, "added_tokens_decoder", {})
        found = {str(token): number for number, token in added.items() if token.special}
        _special[tokenizer] = length, found
    return found


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    return next(
        (n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0
    )
