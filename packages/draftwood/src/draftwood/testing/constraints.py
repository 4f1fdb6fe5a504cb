"""Constraints small enough to know everything about."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from draftwood.arrays import Bool


@dataclass(frozen=True, eq=False)
class Automaton:
    """A constraint that is a table of states; implements ``engine.constraint.Constraint``.

    Args:
        moves: for each state the state after each allowed token; end tokens are left out.
        accepting: states in which a text may end.
        vocab_size: width of the logits.
        end_tokens: tokens that end a text.
    """

    moves: Mapping[str, Mapping[int, str]]
    accepting: frozenset[str] = frozenset()
    vocab_size: int = 3
    end_tokens: frozenset[int] = frozenset()

    def start(self) -> "AutomatonState":
        """The state that the table names first."""
        return AutomatonState(self, next(iter(self.moves)))


@dataclass(frozen=True, eq=False)
class AutomatonState:
    """A text that led to a state of an ``Automaton``; ``ended`` once an end token came."""

    automaton: Automaton
    name: str
    ended: bool = False

    @property
    def may_end(self) -> bool:
        return self.ended or self.name in self.automaton.accepting

    @property
    def must_end(self) -> bool:
        return self.ended or (self.may_end and not self.automaton.moves[self.name])

    def after(self, token: int) -> "AutomatonState | None":
        if token in self.automaton.end_tokens:
            return AutomatonState(self.automaton, self.name, True) if self.may_end else None
        name = None if self.ended else self.automaton.moves[self.name].get(token)
        return None if name is None else AutomatonState(self.automaton, name)

    def allowed(self) -> Bool[np.ndarray, " vocab"]:
        mask = np.zeros(self.automaton.vocab_size, np.bool_)
        mask[[] if self.ended else list(self.automaton.moves[self.name])] = True
        mask[list(self.automaton.end_tokens)] = self.may_end
        return mask

    def forced(self) -> list[int]:
        state, tokens = self, []
        while not state.ended and int(state.allowed().sum()) == 1:
            tokens.append(int(state.allowed().argmax()))
            below = state.after(tokens[-1])
            assert below is not None  # it is allowed
            state = below
            if len(tokens) == self.automaton.vocab_size * len(self.automaton.moves):
                break  # in a ring
        return tokens
