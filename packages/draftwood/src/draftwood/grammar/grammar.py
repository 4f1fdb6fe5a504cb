"""A compiled grammar, and the states of texts under it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import ref

import numpy as np

from draftwood.arrays import Bool

if TYPE_CHECKING:
    from llguidance import LLMatcher


@dataclass(frozen=True, eq=False)
class Grammar:
    """A compiled grammar, made by ``Compiler``; implements ``engine.constraint.Constraint``.

    Requests may share one, in any number and in any thread.

    Args:
        matcher: at the beginning of a text; only copies of it move.
        vocab_size: width of the logits.
        end_tokens: tokens that end a text.
        begins_at_once: whether its texts have no place for a thought before them.
    """

    matcher: "LLMatcher"
    vocab_size: int
    end_tokens: frozenset[int]
    begins_at_once: bool = False

    def start(self) -> "GrammarState":
        cursor = _Cursor(self)
        return GrammarState(cursor, cursor.beginning.text)


@dataclass(eq=False, slots=True)
class _Text:
    """Tokens so far, as the newest one and the text above it."""

    above: "_Text | None" = None
    token: int = -1
    length: int = 0

    def longer(self, token: int) -> "_Text":
        return _Text(self, token, self.length + 1)


@dataclass(eq=False, slots=True)
class _ReadingMatcher:
    """Matcher that has read a text; it only advances."""

    matcher: "LLMatcher"
    text: _Text

    def copy(self) -> "_ReadingMatcher":
        return _ReadingMatcher(self.matcher.deep_copy(), self.text)

    def read(self, text: _Text) -> bool:
        """Advance to a text; False if that does not begin with the one already read."""
        tokens, here = [], text
        while here is not self.text:
            if here.length <= self.text.length:
                return False
            tokens.append(here.token)
            assert here.above is not None  # longer than another one
            here = here.above
        if tokens:
            self.matcher.consume_tokens(tokens[::-1])
            self.text = text
        return True


class _Cursor:
    """The matchers of one text, which read along the branches of its trees.

    The tip follows one branch. For another branch it becomes a copy of the trunk, which stays
    behind all states that may still be asked for; a copy takes about 50 ns for each token of the
    text. Nothing is rolled back: llguidance would keep the mask of a branch that was left, and
    refuse some grammars.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.beginning = _ReadingMatcher(grammar.matcher, _Text())  # only copies of it read
        self.trunk, self.tip = self.beginning.copy(), self.beginning.copy()

    def to(self, state: "GrammarState") -> "LLMatcher | None":
        """Matcher after the text of a state; None if the parser gave up on the way."""
        if not self.tip.read(state.text):
            oldest = state.oldest().text
            if not self.trunk.read(oldest):  # it was left behind, yet somebody kept it
                self.trunk = self.beginning.copy()
                self.trunk.read(oldest)
            self.tip = self.trunk.copy()
            self.tip.read(state.text)
        return self.tip.matcher if self.is_well() else None

    def is_well(self) -> bool:
        """True if the parser goes on; else replace it, for one in error never recovers."""
        if not self.tip.matcher.is_error():
            return True
        if self.trunk.matcher.is_error():
            self.trunk = self.beginning.copy()
        self.tip = self.trunk.copy()
        return False


class GrammarState:
    """A text that fits a grammar so far; implements ``engine.constraint.ConstraintState``.

    End tokens are not shown to the matcher: they mean the same in every grammar, and nothing has to
    be undone where a branch does not end. Where the parser gives up, because a text becomes too
    ambiguous for its limits or no token is left, nothing is allowed; this matters only if the text
    itself gets there.
    """

    __slots__ = ("__weakref__", "_above", "_cursor", "ended", "lost", "text")

    def __init__(
        self,
        cursor: _Cursor,
        text: _Text,
        above: "GrammarState | None" = None,
        ended: bool = False,
    ) -> None:
        self._cursor, self.text, self.ended = cursor, text, ended
        self._above = None if above is None else ref(above)  # whoever asks it, keeps it
        self.lost = False  # whether the parser gave up here

    def oldest(self) -> "GrammarState":
        """Oldest ancestor still referenced; all states that may still be asked follow it."""
        state = self
        while state._above is not None and (above := state._above()) is not None:
            state = above
        return state

    @property
    def may_end(self) -> bool:
        if self.ended:
            return True
        matcher = self._matcher()
        return matcher is not None and matcher.is_accepting()

    @property
    def must_end(self) -> bool:
        if self.ended:
            return True
        matcher = self._matcher()
        return matcher is not None and matcher.is_accepting() and matcher.is_stopped()

    def after(self, token: int) -> "GrammarState | None":
        if token in self._cursor.grammar.end_tokens:
            return self._below(token, ended=True) if self.may_end else None
        matcher = None if self.ended else self._matcher()
        if matcher is None or not 0 <= token < self._cursor.grammar.vocab_size:
            return None
        fits = matcher.validate_tokens([token]) == 1
        return self._below(token) if self._went_well() and fits else None

    def allowed(self) -> Bool[np.ndarray, " vocab"]:
        grammar, may_end = self._cursor.grammar, self.may_end
        matcher = None if self.must_end else self._matcher()
        bits = b"" if matcher is None else matcher.compute_bitmask()
        if bits and self._went_well():
            packed = np.frombuffer(bits, dtype=np.uint8)
            flags = np.unpackbits(packed, count=grammar.vocab_size, bitorder="little")
        else:
            flags = np.zeros(grammar.vocab_size, dtype=np.uint8)
        flags[list(grammar.end_tokens)] = may_end
        return flags.view(np.bool_)

    def forced(self) -> list[int]:
        if self.must_end:
            ends = self._cursor.grammar.end_tokens
            return list(ends) if len(ends) == 1 else []
        matcher = self._matcher()
        tokens = [] if matcher is None else matcher.compute_ff_tokens()
        return tokens if self._went_well() else []

    def _below(self, token: int, ended: bool = False) -> "GrammarState":
        return GrammarState(self._cursor, self.text.longer(token), self, ended)

    def _matcher(self) -> "LLMatcher | None":
        """Matcher after this text; None if the parser gave up."""
        matcher = None if self.lost else self._cursor.to(self)
        self.lost = matcher is None
        return matcher

    def _went_well(self) -> bool:
        """Record whether the parser survived the last question; False once it gave up."""
        self.lost = self.lost or not self._cursor.is_well()
        return not self.lost


def first_line(text: str) -> str:
    """First line of an error that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and "<" not in line[:1]]
    return lines[0].rstrip(".:;") if lines else "no reason given"
