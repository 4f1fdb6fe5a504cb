"""A sequence's memory of recurrences: a state, and the rows since that are not yet part of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from draftwood_torch.recurrences.base import Recurrence


@dataclass(frozen=True, eq=False)
class RecurrentMemory:
    """State and rows of one sequence; nothing in it is ever written over.

    Attributes:
        states: of each recurrence, after the first ``base`` tokens [1 ...].
        rows: of each recurrence, what tokens and nodes fed to it.
        index: which of these are the rows of the places from ``base`` on, in their order; before
            them those that a convolution looks back at.
        nodes: where the nodes of the newest pass begin, and what they see of each other.
    """

    states: tuple[Tensor, ...]
    base: int
    rows: tuple[Float[Tensor, "rows width"], ...]
    index: tuple[int, ...]
    nodes: tuple[int, Bool[Tensor, "nodes nodes"]] | None = None

    @classmethod
    def empty(cls, recurrences: Sequence[Recurrence], like: Tensor) -> "RecurrentMemory":
        """Make the memory of no tokens."""
        before = lookback(recurrences)
        return cls(
            tuple(each.start() for each in recurrences),
            0,
            tuple(like.new_zeros(before, each.width) for each in recurrences),
            tuple(range(before)),
        )

    def until(self, place: int, before: int) -> "RecurrentMemory | None":
        """The same up to a place; None where that is part of the state."""
        if place < self.base:
            return None
        return replace(self, index=self.index[: before + place - self.base])

    def end(self, before: int) -> int:
        """The place after the last one that is known."""
        return self.base + len(self.index) - before

    def keep(self, start: int, path: Sequence[int], before: int) -> "RecurrentMemory | None":
        """With the rows at ``start + path`` at ``start``, and none after them."""
        # tokens that were taken back and are kept again, of which not all are known
        if start < self.base or self.end(before) <= start + max(path, default=-1):
            known = self.until(start + len(path), before)
            return None if known is None else replace(known, nodes=None)
        shift = before + start - self.base
        kept = tuple(self.index[shift + node] for node in path)
        return replace(self, index=self.index[:shift] + kept, nodes=None)

    def folded(self, recurrences: Sequence[Recurrence], count: int) -> "RecurrentMemory":
        """With the first ``count`` rows in the state: replayed onto it."""
        before = lookback(recurrences)
        index = torch.tensor(self.index[: before + count])
        states = []
        for recurrence, state, rows in zip(recurrences, self.states, self.rows, strict=True):
            replayed = rows[index.to(rows.device)][None, before - recurrence.kernel + 1 :]
            states.append(recurrence.through(state, replayed, count)[1])
        return replace(self, states=tuple(states), base=self.base + count, index=self.index[count:])


def lookback(recurrences: Sequence[Recurrence]) -> int:
    """Rows that the longest convolution reads before a row."""
    return max(each.kernel for each in recurrences) - 1
