"""A compiled grammar, and the states of texts under it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

if TYPE_CHECKING:
    from llguidance import LLMatcher


@dataclass(frozen=True, eq=False)
class Grammar:
    """A compiled grammar, made by ``Compiler``; implements ``interfaces.constraint.Constraint``.

    Requests may share one, in any number and in any thread.

    Args:
        matcher: at the beginning of a text; only copies of it move.
        vocab_size: width of the logits.
        end_tokens: tokens that end a text.
    """

    matcher: "LLMatcher"
    vocab_size: int
    end_tokens: frozenset[int]

    def start(self) -> "GrammarState":
        return _Cursor(self).start


class _Cursor:
    """The matcher of one text, which moves along the branches of its trees.

    A copy of a matcher takes as long as the text is; going back some tokens and forth on another
    branch does not.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.start = GrammarState(self, None, -1)
        self.restart()

    def restart(self) -> None:
        """Take a fresh matcher: one in error never gets out of it."""
        self.matcher = self.grammar.matcher.deep_copy()
        self.here = self.start

    def to(self, state: "GrammarState") -> "LLMatcher | None":
        """The matcher after the text of a state; None where the parser gave up on the way."""
        here, there, back, tokens = self.here, state, 0, []
        while here is not there:
            if here.depth >= there.depth:
                here, back = here.above, back + 1
            else:
                tokens.append(there.token)
                there = there.above
        if back:
            self.matcher.rollback(back)
        if tokens:
            self.matcher.consume_tokens(tokens[::-1])
        self.here = state
        return self.matcher if self.is_well() else None

    def is_well(self) -> bool:
        """Whether the parser goes on; else another one is at the beginning."""
        if not self.matcher.is_error():
            return True
        self.restart()
        return False


class GrammarState:
    """A text that fits a grammar so far; implements ``interfaces.constraint.ConstraintState``.

    End tokens are not shown to the matcher: what they do is the same for every grammar, and nothing
    has to be taken back where a branch does not end. Where the parser gives up, as a text becomes
    too ambiguous for its limits or no token leads on, nothing is allowed: that matters only if the
    text itself gets there.
    """

    __slots__ = ("_cursor", "depth", "ended", "lost", "parent", "token")

    def __init__(
        self, cursor: _Cursor, parent: "GrammarState | None", token: int, ended: bool = False
    ) -> None:
        self._cursor, self.parent, self.token, self.ended = cursor, parent, token, ended
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.lost = False  # whether the parser gave up here

    @property
    def above(self) -> "GrammarState":
        """The state one token before."""
        assert self.parent is not None  # nobody asks at the beginning
        return self.parent

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
            return GrammarState(self._cursor, self, token, ended=True) if self.may_end else None
        matcher = None if self.ended else self._matcher()
        if matcher is None or not 0 <= token < self._cursor.grammar.vocab_size:
            return None
        fits = matcher.validate_tokens([token]) == 1
        return GrammarState(self._cursor, self, token) if self._went_well() and fits else None

    def allowed(self) -> Bool[Tensor, " vocab"]:
        grammar, may_end = self._cursor.grammar, self.may_end
        # in numpy: torch would wake its threads for so many entries, and wait for them
        flags = np.zeros(grammar.vocab_size, dtype=np.uint8)
        matcher = None if self.must_end else self._matcher()
        if matcher is not None:
            bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            if self._went_well():
                flags = np.unpackbits(bits, count=grammar.vocab_size, bitorder="little")
        flags[list(grammar.end_tokens)] = may_end
        return torch.from_numpy(flags.view(np.bool_))

    def forced(self) -> list[int]:
        if self.must_end:
            ends = self._cursor.grammar.end_tokens
            return list(ends) if len(ends) == 1 else []
        matcher = self._matcher()
        tokens = [] if matcher is None else matcher.compute_ff_tokens()
        return tokens if self._went_well() else []

    def _matcher(self) -> "LLMatcher | None":
        """The matcher after this text; None where the parser gave up."""
        matcher = None if self.lost else self._cursor.to(self)
        self.lost = matcher is None
        return matcher

    def _went_well(self) -> bool:
        """Whether the parser did not give up over the last question."""
        self.lost = self.lost or not self._cursor.is_well()
        return not self.lost


def first_line(text: str) -> str:
    """The first line of an error that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and "<" not in line[:1]]
    return lines[0].rstrip(".:;") if lines else "no reason given"
