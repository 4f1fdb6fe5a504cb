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
        return _Cursor(self.matcher.deep_copy(), self).start


class _Cursor:
    """The matcher of one text, which moves along the branches of its trees.

    A copy of a matcher takes as long as the text is; going back some tokens and forth on another
    branch does not.
    """

    def __init__(self, matcher: "LLMatcher", grammar: Grammar) -> None:
        self.matcher, self.grammar = matcher, grammar
        self.here = self.start = GrammarState(self, None, -1)

    def to(self, state: "GrammarState") -> "LLMatcher":
        """The matcher after the text of a state.

        Raises:
            ValueError: where the parser gave up, for instance as the text became too ambiguous.
        """
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
        self.require_whole()
        return self.matcher

    def require_whole(self) -> None:
        """Raise ValueError where the matcher is in error: it never gets out of that again."""
        if self.matcher.is_error():
            raise ValueError(
                "the grammar cannot be followed any further: "
                f"{first_line(self.matcher.get_error())}; make it simpler"
            )


class GrammarState:
    """A text that fits a grammar so far; implements ``interfaces.constraint.ConstraintState``.

    End tokens are not shown to the matcher: what they do is the same for every grammar, and nothing
    has to be taken back where a branch does not end.
    """

    __slots__ = ("_cursor", "depth", "ended", "parent", "token")

    def __init__(
        self, cursor: _Cursor, parent: "GrammarState | None", token: int, ended: bool = False
    ) -> None:
        self._cursor, self.parent, self.token, self.ended = cursor, parent, token, ended
        self.depth: int = 0 if parent is None else parent.depth + 1

    @property
    def above(self) -> "GrammarState":
        """The state one token before."""
        assert self.parent is not None  # nobody asks at the beginning
        return self.parent

    @property
    def may_end(self) -> bool:
        return self.ended or self._cursor.to(self).is_accepting()

    @property
    def must_end(self) -> bool:
        return self.ended or self._cursor.to(self).is_stopped()

    def after(self, token: int) -> "GrammarState | None":
        if token in self._cursor.grammar.end_tokens:
            return GrammarState(self._cursor, self, token, ended=True) if self.may_end else None
        if self.ended:
            return None
        if self._cursor.to(self).validate_tokens([token]) < 1:
            self._cursor.require_whole()
            return None
        return GrammarState(self._cursor, self, token)

    def allowed(self) -> Bool[Tensor, " vocab"]:
        grammar = self._cursor.grammar
        mask = torch.zeros(grammar.vocab_size, dtype=torch.bool)
        if not self.must_end:
            bits = np.frombuffer(self._cursor.matcher.compute_bitmask(), dtype=np.uint8)
            self._cursor.require_whole()
            flags = np.unpackbits(bits, count=grammar.vocab_size, bitorder="little")
            mask = torch.from_numpy(flags.view(np.bool_))
        mask[list(grammar.end_tokens)] = self.may_end
        return mask

    def forced(self) -> list[int]:
        if self.must_end:
            ends = self._cursor.grammar.end_tokens
            return list(ends) if len(ends) == 1 else []
        return self._cursor.matcher.compute_ff_tokens()


def first_line(text: str) -> str:
    """The first line of an error that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and "<" not in line[:1]]
    return lines[0].rstrip(".:;") if lines else "no reason given"
