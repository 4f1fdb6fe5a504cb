"""Places of tokens in texts that do not change: a suffix array of the texts read backwards."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftwood.sources.auto.suffix import BREAK, DEEPEST

MOST_TOKENS = 2**31 - 1
"""Rows are numbers of 32 bits."""


@dataclass(frozen=True, eq=False)
class TokenIndex:
    """Every place of some texts, sorted by the tokens that stand before it, the nearest first.

    A suffix array (Manber and Myers 1993) of the texts read backwards. What is kept of it is what a
    look-up reads, 9 bytes per token, in the way of compressed suffix arrays (Grossi and Vitter
    2000): a token more narrows a range of rows by two searches in one sorted array, and where none
    is left, the least wider range is that of the neighbours that share most. Texts are told apart
    by ``BREAK``, which no look-up asks for.

    Attributes:
        starts: first row of the places behind each token, ``BREAK`` before token 0.
        rows: for each token the rows that it follows, ascending.
        following: the token that follows each row, ``BREAK`` at the end of a text.
        shared: how many of the tokens before a place also stand before that of the row above,
            ``DEEPEST`` at most.
    """

    starts: NDArray[np.int32]
    rows: NDArray[np.int32]
    following: NDArray[np.int32]
    shared: NDArray[np.uint8]

    @classmethod
    def of(
        cls,
        texts: Iterable[Sequence[int]],
        vocab_size: int,
        told: Callable[[int, int], object] = lambda done, rounds: None,
    ) -> "TokenIndex":
        """Sort texts: a few seconds per million tokens, and some 80 bytes per token while it lasts.

        Args:
            texts: tokens below ``vocab_size``.
            told: hears how many rounds of sorting are done, and how many there are.

        Raises:
            ValueError: for texts without tokens, more of them than ``MOST_TOKENS``, and tokens
                out of range.
        """
        tokens = _joined(texts, vocab_size)
        order, ranks = _sorted(tokens, told)
        following = np.roll(tokens, -1)[order]
        sizes = np.bincount(tokens + 1, minlength=vocab_size + 1)
        return cls(
            np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
            np.argsort(following, kind="stable").astype(np.int32),
            following,
            _shared(order, ranks),
        )

    @property
    def tokens(self) -> int:
        """Rows that there are."""
        return len(self.rows)

    @property
    def vocab_size(self) -> int:
        """Tokens that there may be."""
        return len(self.starts) - 2

    def behind(self, before: Sequence[int]) -> range:
        """Find the rows of the places that stand behind these tokens, in their order."""
        low, high = 0, self.tokens
        for token in before:
            low, high = (self.starts[token + 1] + self._ranks(token, low, high)).tolist()
        return range(low, high)

    def counts(self, before: Sequence[int], tokens: Sequence[int]) -> tuple[int, NDArray[np.int64]]:
        """Count the places behind some tokens, and those of them that each of others follows.

        Their quotients are an n-gram model's chances: of ``[7, 8, 7, 9]`` it is ``(2, [1, 1])``
        before ``[7]`` for ``[8, 9]``.

        Args:
            before: fewer than ``DEEPEST`` tokens, the newest last.
            tokens: to be counted, [tokens].
        """
        rows = self.behind(before)
        ranks = [self._ranks(token, rows.start, rows.stop) for token in tokens]
        return len(rows), np.array([each[1] - each[0] for each in ranks], np.int64)

    def _ranks(self, token: int, low: int, high: int) -> NDArray[np.int64]:
        """Count the rows before each of two that a token follows."""
        own = self.rows[self.starts[token + 1] : self.starts[token + 2]]
        return own.searchsorted(np.array([low, high], np.int32))

    @property
    def largest(self) -> int:
        """The largest token that stands in the texts."""
        return int(np.flatnonzero(np.diff(self.starts))[-1]) - 1


def _joined(texts: Iterable[Sequence[int]], vocab_size: int) -> NDArray[np.int32]:
    """All texts in one, a ``BREAK`` before each."""
    parts = [np.asarray(text, dtype=np.int64) for text in texts]
    count = sum(map(len, parts)) + len(parts)
    if count == len(parts):
        raise ValueError("the texts hold no tokens; name files that hold some")
    if count > MOST_TOKENS:
        raise ValueError(
            f"{count:,} tokens are more than the {MOST_TOKENS:,} of one datastore; name fewer files"
        )
    low, high = min(part.min() for part in parts if len(part)), max(map(_largest, parts))
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"tokens must be from 0 to {vocab_size - 1}, got {low} to {high}; take the tokenizer"
            " of the model"
        )
    apart = [np.array([BREAK])]
    return np.concatenate([each for part in parts for each in (*apart, part)]).astype(np.int32)


def _largest(tokens: NDArray[np.int64]) -> int:
    return int(tokens.max(initial=BREAK))


def _sorted(
    tokens: NDArray[np.int32], told: Callable[[int, int], object]
) -> tuple[NDArray[np.int64], list[NDArray[np.int32]]]:
    """Places by what they end with, and their ranks by the last 1, 2, 4, ... ``DEEPEST`` tokens.

    Prefix doubling, which ends after the tokens that a match may have.
    """
    ranks, length = [tokens + 1], 1
    order = np.zeros(0, dtype=np.int64)
    while length < DEEPEST:
        base = np.int64(max(len(tokens), int(ranks[0].max()) + 1))
        keys = ranks[-1].astype(np.int64) * base + np.roll(ranks[-1], length)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        rank = np.empty(len(tokens), dtype=np.int32)
        rank[order] = np.concatenate(([0], np.cumsum(keys[1:] != keys[:-1])))
        ranks.append(rank)
        length *= 2
        told(len(ranks) - 1, DEEPEST.bit_length() - 1)
    return order, ranks


def _shared(order: NDArray[np.int64], ranks: Sequence[NDArray[np.int32]]) -> NDArray[np.uint8]:
    """Count the tokens that each place shares with the one above."""
    above, place = order[:-1], order[1:]
    shared = np.zeros(len(place), dtype=np.int64)
    for level in reversed(range(len(ranks))):
        step = (ranks[level][above] == ranks[level][place]) * (1 << level)
        shared += step
        above, place = (above - step) % len(order), (place - step) % len(order)
    return np.concatenate(([0], np.minimum(shared, DEEPEST))).astype(np.uint8)
