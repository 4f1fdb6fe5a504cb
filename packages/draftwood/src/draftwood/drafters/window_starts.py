"""Rows that a window's new places start from, until a pass has seen them."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from draftwood.arrays import Float

Row = Float[np.ndarray, " vocab"]


@runtime_checkable
class StartRow(Protocol):
    """Rule for a place that no pass has seen: gives the row that its token is drawn from.

    The row may depend on what stands before the place, draft tokens and the rows of tokens
    included, and on nothing else.
    """

    @property
    @abstractmethod
    def reach(self) -> int:
        """Tokens back from a new place to the farthest one whose row is asked for; 0 for none."""

    @abstractmethod
    def row(self, before: Sequence[int], rows: Sequence[Row], vocab: int) -> Row:
        """Probabilities of a new place.

        Args:
            before: all tokens before the place, text and draft; at least one.
            rows: that the newest of these came from, as far back as they are known: the draft's
                own, and the target's of as much of the text as ``reach`` asks for.
            vocab: entries of the row.
        """


@runtime_checkable
class CopyingStart(StartRow, Protocol):
    """Rule whose rows are certain of an earlier token or of none, so that the library starts."""

    def backs(self, before: Sequence[int]) -> Sequence[int] | None:
        """Tokens back to the one that a place repeats, by place; 0 for any token. The last holds
        for all further places. None where the rule goes by rows.

        Args:
            before: all tokens of the text but the newest one, behind which the places come.
        """
        ...


@dataclass(frozen=True)
class StartUniform:
    """Start with any token, all of them equally likely."""

    @property
    def reach(self) -> int:
        return 0

    def backs(self, before: Sequence[int]) -> Sequence[int]:
        return [0]

    def row(self, before: Sequence[int], rows: Sequence[Row], vocab: int) -> Row:
        return np.full(vocab, 1.0 / vocab, np.float32)


@dataclass(frozen=True)
class StartFromLeft:
    """Start with the token to the left once more, for certain."""

    @property
    def reach(self) -> int:
        return 0

    def backs(self, before: Sequence[int]) -> Sequence[int]:
        return [1]

    def row(self, before: Sequence[int], rows: Sequence[Row], vocab: int) -> Row:
        row = np.zeros(vocab, np.float32)
        row[before[-1]] = 1.0
        return row
