"""A block under way, and what a pass says of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from jaxtyping import Float, Int

from draftwood_diffusion.view import View


@dataclass(frozen=True, eq=False)
class BlockState:
    """Tokens of a block, masks among them.

    Attributes:
        tokens: of the block.
        mask: the token of places where nothing is written.
        history: views of its passes before, as many as the rule reads.
        is_last: True if the text ends with this block.
        rereads: passes since it was written, see ``Stepping.ends_block``.
        next_masks: places of the next block that run behind this one, which is written.
    """

    tokens: tuple[int, ...]
    mask: int
    history: tuple[View, ...] = ()
    is_last: bool = False
    rereads: int = 0
    next_masks: int = 0

    @property
    def is_written(self) -> bool:
        """True if no place is open."""
        return self.mask not in self.tokens

    def first(self, places: int, is_last: bool) -> "BlockState":
        """The same block cut off behind so many places, in its history too."""
        history = tuple(each.first(places) for each in self.history)
        return replace(self, tokens=self.tokens[:places], history=history, is_last=is_last)


def numbers_of(states: Sequence[BlockState]) -> dict[tuple[int, ...], int]:
    """Numbers of states by their tokens, the first of equal ones: an edit may take one back."""
    found = dict[tuple[int, ...], int]()
    for number, state in enumerate(states):
        found.setdefault(state.tokens, number)
    return found


@dataclass(frozen=True, eq=False)
class Leaders:
    """Tokens that come first at each place in the race for it.

    Attributes:
        tokens: [places count], first the one that is drawn; -1 where none may be.
        shares: [places count], of each in the sum of their rates.
    """

    tokens: Int[np.ndarray, "places count"]
    shares: Float[np.ndarray, "places count"]


@dataclass(frozen=True, eq=False)
class Seen:
    """Content of a pass for one block.

    Attributes:
        probs: [places vocab], the model's distributions before temperature.
        drawn: [places], the token that each place takes if it is fixed now; -1 where none may be.
        race: gives so many leaders of each place; None knows the drawn ones alone.
    """

    probs: Float[np.ndarray, "places vocab"]
    drawn: Int[np.ndarray, " places"]
    race: Callable[[int], Leaders] | None = None

    def leaders(self, count: int) -> Leaders:
        """The drawn tokens, and those that come next, so many of each place in all."""
        if count == 1 or self.race is None:
            return Leaders(self.drawn[:, None], np.ones((len(self.drawn), 1)))
        return self.race(count)


class Advance(Protocol):
    """Steps of a block."""

    def __call__(self, state: BlockState, seen: Seen) -> BlockState:
        """The next state, given what a pass says of this one."""
        ...

    def is_over(self, state: BlockState) -> bool:
        """True if the text ends with this state."""
        ...

    def with_next(self, state: BlockState) -> BlockState | None:
        """A written block and the masks of the next one; None where they cannot run together."""
        ...
