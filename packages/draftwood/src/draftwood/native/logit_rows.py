"""Distributions that stay rows of logits.

Of a row only sums are computed; a probability is computed when it is asked for. Trees are drawn
from such rows and verified by them without a copy of a row. See logit_rows.h.
"""

from collections.abc import Sequence
from ctypes import addressof, c_double, c_float, c_int64
from dataclasses import dataclass
from functools import cached_property
from math import exp
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from draftwood.arrays import Float, Int, address_of
from draftwood.native import library
from draftwood.native.rows import softmax
from draftwood.native.threads import threads

_BLOCK = 256  # ROW_BLOCK of rows.h
_LOWEST = -86.9
_TOTAL, _MOST, _BLOCKS = 0, 1, 2  # see logit_rows.cpp


class Children(NamedTuple):
    """Children of some nodes, in drawing order.

    Attributes:
        tokens: of each node's children.
        chances: of these in the node's row.
    """

    tokens: list[list[int]]
    chances: list[list[float]]


def children_of(
    probs: Float[np.ndarray, "rows vocab"], tokens: Int[np.ndarray, "rows children"]
) -> Children:
    """These tokens, and their probabilities."""
    return Children(tokens.tolist(), np.take_along_axis(probs, tokens, -1).tolist())


@runtime_checkable
class Draws(Protocol):
    """The acts of ``Rng`` that end a verdict."""

    def draw(self, probs: Float[np.ndarray, " vocab"], /) -> int: ...

    def draw_from_logits(
        self, logits: Float[np.ndarray, "rows vocab"], row: int, temperature: float, /
    ) -> int: ...


@dataclass(frozen=True, eq=False)
class Support:
    """The tokens that rows know: entry i of a row belongs to ``tokens[i]``, all different."""

    tokens: Int[np.ndarray, " draft_vocab"]

    @cached_property
    def ids(self) -> list[int]:
        """The tokens on the host."""
        return self.tokens.tolist()

    @cached_property
    def places(self) -> dict[int, int]:
        """Entry of each token."""
        return {token: place for place, token in enumerate(self.ids)}

    @cached_property
    def highest(self) -> int:
        """The highest token."""
        return int(self.tokens.max())

    def extended(self, tokens: Sequence[int]) -> "Support":
        """The same and further tokens.

        The lists are shared and grow, as copies of them would take longer than a draft: so they may
        hold more than ``tokens``, whose number says what counts.
        """
        size, new = len(self.tokens), np.array(tokens, np.int64)
        other = Support(np.concatenate([self.tokens, new]))
        if len(self.ids) == size:
            ids, places = self.ids, self.places
        else:  # another text went on from here
            ids = self.ids[:size]
            places = {token: place for place, token in enumerate(ids)}
        places.update((token, place) for place, token in enumerate(tokens, start=size))
        ids.extend(tokens)
        other.__dict__.update(ids=ids, places=places)
        return other


class LogitRows:
    """The distributions softmax(logits / temperature) of some nodes.

    A row that is none, as it holds NaN or plus infinity or nothing finite, counts as uniform.

    Args:
        logits: rows for which ``rows.in_cpp`` is True; they are kept, not copied.
        temperature: above 0.
        vocab: tokens of the target; None takes a row's entries.
        support: the tokens of the entries; None where entry i belongs to token i.

    Attributes:
        is_broken: whether there was such a row.
    """

    def __init__(
        self,
        logits: Float[np.ndarray, "rows entries"],
        temperature: float,
        vocab: int | None = None,
        support: Support | None = None,
    ) -> None:
        self.temperature, self.support = temperature, support
        self.count, self.size = logits.shape
        self.vocab = self.size if vocab is None else vocab
        self._inverse = c_float(1.0 / c_float(temperature).value).value  # as the library has it
        self._wide = _BLOCKS - (-self.size // _BLOCK)
        self.sums = (c_double * (self.count * self._wide))()
        self.is_broken = self._sum(logits) > 0
        if self.is_broken:
            odd = [row for row in range(self.count) if self.total(row) != self.total(row)]
            logits = logits.copy()
            logits[odd] = 0.0
            self._sum(logits)

    def __len__(self) -> int:
        return self.count

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of tokens that can be drawn from one."""
        return self.count, self.size

    def _sum(self, logits: np.ndarray) -> int:
        """Take these logits; gives the number of rows that are no distribution."""
        self.logits, self._stride = logits, logits.strides[0] // 4
        self._address = address_of(logits)
        found = library.library().draftwood_sum_weights(
            self._address,
            *(self.count, self._stride, self.size, self.temperature),
            *(self.sums, self._threads()),
        )
        return found

    def _threads(self) -> int:
        return threads() if self.count > 1 else 1  # of which each takes a row

    def total(self, row: int) -> float:
        """Sum of a row's weights."""
        return self.sums[row * self._wide + _TOTAL]

    def place(self, token: int) -> int:
        """Entry of a token; -1 for one that the rows do not know."""
        if self.support is not None:
            place = self.support.places.get(token, -1)
            return place if place < self.size else -1
        return token if 0 <= token < self.size else -1

    def weight(self, row: int, place: int) -> float:
        """Weight of an entry: 1 for the likeliest, 0 for what is never drawn."""
        value = c_float.from_address(self._address + 4 * (row * self._stride + place)).value
        score = (value - self.sums[row * self._wide + _MOST]) * self._inverse
        return exp(score) if score > _LOWEST else 0.0

    def softmax_of(self, row: int) -> tuple[int, int, float, int]:
        """A row's arguments for the library: address, width, temperature, sums."""
        address = self._address + 4 * row * self._stride
        sums = addressof(self.sums) + 8 * row * self._wide
        return address, self.size, self.temperature, sums

    def drawn(self, uniforms: Sequence[float], count: int, distinct: bool) -> Children:
        """Draw ``count`` tokens of each row by inverting the cumulative distribution.

        Where a row has fewer distinct tokens, the places left hold tokens that are drawn already or
        have probability 0.

        Args:
            uniforms: numbers in [0, 1), as many for each row.
            count: of a row.
            distinct: without replacement.
        """
        return self._children((c_double * len(uniforms))(*uniforms), count, distinct)

    def likeliest(self, count: int) -> Children:
        """The ``count`` likeliest tokens of each row, in falling order; all of a row with fewer."""
        return self._children(None, min(count, self.size), True)

    def _children(self, shares: object, count: int, distinct: bool) -> Children:
        places = (c_int64 * (self.count * count))()
        chances = (c_double * (self.count * count))()
        library.library().draftwood_draw_children(
            self._address,
            *(self.count, self._stride, self.size, self.temperature),
            *(self.sums, shares, count, distinct, places, chances, self._threads()),
        )
        parts = [slice(row * count, (row + 1) * count) for row in range(self.count)]
        found = [places[part] for part in parts]
        if self.support is not None:
            ids = self.support.ids
            found = [[ids[place] for place in row] for row in found]
        return Children(found, [chances[part] for part in parts])

    def probs(self) -> Float[np.ndarray, "rows vocab"]:
        """The probabilities, over the target's vocabulary."""
        return self.widened(softmax(self.logits, self.temperature))

    def widened(self, probs: Float[np.ndarray, "rows entries"]) -> Float[np.ndarray, "rows vocab"]:
        """Spread rows over the target's vocabulary, whose other tokens get 0."""
        if self.support is None and self.size == self.vocab:
            return probs
        wide = np.zeros((len(probs), self.vocab), probs.dtype)
        wide[:, slice(self.size) if self.support is None else self.support.tokens] = probs
        return wide

    def each(self) -> list["LogitRow"]:
        """The rows one by one."""
        return [LogitRow(self, row) for row in range(self.count)]


class LogitRow:
    """One of ``LogitRows``, from which tokens may be put aside.

    Args:
        rows: that it belongs to.
        row: its number there.
        gone: entries that were put aside.
        total: of the weights left; None takes all.
    """

    __slots__ = ("_probs", "gone", "row", "rows", "total")

    def __init__(
        self,
        rows: LogitRows,
        row: int,
        gone: tuple[int, ...] = (),
        total: float | None = None,
    ) -> None:
        self.rows, self.row, self.gone = rows, row, gone
        self.total = rows.total(row) if total is None else total
        self._probs: np.ndarray | None = None

    def chance(self, token: int) -> float:
        """Probability of a token."""
        place = self.rows.place(token)
        if place < 0 or place in self.gone:
            return 0.0
        return self.rows.weight(self.row, place) / self.total if self.total > 0.0 else 0.0

    def without(self, token: int) -> "LogitRow":
        """The row once this token is drawn and put aside; it gives nothing where none is left."""
        gone = (*self.gone, self.rows.place(token))
        total = library.library().draftwood_sum_without(
            *self.rows.softmax_of(self.row), library.integers(gone), len(gone)
        )
        return LogitRow(self.rows, self.row, gone, total)

    def array(self) -> Float[np.ndarray, " vocab"]:
        """The probabilities, computed once."""
        if self._probs is None:
            self._probs = self._computed()
        return self._probs

    def _computed(self) -> Float[np.ndarray, " vocab"]:
        rows, row = self.rows, self.row
        probs = softmax(rows.logits[row : row + 1], rows.temperature)
        if self.gone:
            probs[0, list(self.gone)] = 0.0
            probs /= max(probs.sum(), np.float32(1e-30))
        return rows.widened(probs)[0]

    def minus(self, drafted: "LogitRow", weight: float = 1.0) -> "tuple[Remainder, float]":
        """Reject a draft token: [w p - q]+, and its sum.

        Args:
            drafted: the row q that the token was drawn from.
            weight: w, above 0.
        """
        weights = np.empty(self.rows.vocab, np.float32)
        rest = Remainder(weights, self.total)
        return rest.less(drafted, weight, self.rows.softmax_of(self.row))

    def draw(self, rng: Draws) -> int:
        """Draw a token."""
        return rng.draw_from_logits(self.rows.logits, self.row, self.rows.temperature)


class Remainder:
    """Weights that rejections have left of a target's row.

    Args:
        weights: need not be normalised.
        total: their sum.
    """

    __slots__ = ("_address", "total", "weights")

    def __init__(self, weights: Float[np.ndarray, " vocab"], total: float) -> None:
        self.weights, self.total, self._address = weights, total, address_of(weights)

    def chance(self, token: int) -> float:
        """Probability of a token."""
        return c_float.from_address(self._address + 4 * token).value / self.total

    def array(self) -> Float[np.ndarray, " vocab"]:
        """The probabilities."""
        return self.weights / self.total

    def minus(self, drafted: LogitRow, weight: float = 1.0) -> "tuple[Remainder, float]":
        """Reject another token: [w p - q]+ in the same memory, so this row is over, and its sum."""
        return self.less(drafted, weight, (None, 0, 1.0, None))

    def less(
        self, drafted: LogitRow, weight: float, first: tuple[object, ...]
    ) -> "tuple[Remainder, float]":
        """Do so where a row of logits, ``first``, may stand for the weights."""
        if not drafted.total > 0.0:
            raise ValueError("a row without weights can have drafted nothing to reject")
        rows = drafted.rows
        support, gone = rows.support, drafted.gone
        spared = gone if support is None else [support.ids[place] for place in gone]
        total = library.library().draftwood_take_away(
            *(self._address, len(self.weights), *first, *rows.softmax_of(drafted.row)),
            None if support is None else address_of(support.tokens),
            *(self.total / drafted.total / weight, library.integers(spared), len(spared)),
        )
        if total > 0.0:
            return Remainder(self.weights, total), weight * total / self.total
        # where nothing is left of p itself it equals q, so no token can have been rejected
        left = drafted.array()
        return Remainder(left, float(left.sum())), 0.0

    def draw(self, rng: Draws) -> int:
        """Draw a token."""
        return rng.draw(self.weights)
