"""Look-ups in the sorted index of a datastore: native/sources/datastore.cpp."""

from typing import NamedTuple

import numpy as np

from draftwood.sources.auto.suffix import BREAK, DEEPEST
from draftwood.sources.token_index import TokenIndex


class Range(NamedTuple):
    """The rows of all places behind which the newest tokens of a text stand.

    Attributes:
        first: row.
        end: row behind the last.
        matched: how many of the newest tokens stand there.
        last: the newest token, where there is any.
    """

    first: int
    end: int
    matched: int
    last: int


def whole(index: TokenIndex) -> Range:
    """The range where nothing is known of a text."""
    return Range(0, index.tokens, 0, BREAK)


def step(index: TokenIndex, match: Range, token: int) -> Range:
    """Narrow a range to a text that is one token longer."""
    if not 0 <= token < index.vocab_size:
        return whole(index)
    low, high = _behind(index, token)
    if low == high:
        return whole(index)
    rows = index.rows[low:high]
    while True:
        first, end = np.searchsorted(rows, (match.first, match.end)).tolist()
        if first < end:
            break
        match = _wider(index, match)
    deeper = match.matched + 1
    if deeper > DEEPEST:
        return _spread(index, low + first, low + end, DEEPEST, token)
    return Range(low + first, low + end, deeper, token)


def _behind(index: TokenIndex, token: int) -> tuple[int, int]:
    return int(index.starts[token + 1]), int(index.starts[token + 2])


def _wider(index: TokenIndex, match: Range) -> Range:
    """The least range of fewer tokens."""
    below = index.shared[match.end] if match.end < index.tokens else 0
    matched = max(int(index.shared[match.first]), int(below))
    if matched == 0:
        return whole(index)
    if matched == 1:
        return Range(*_behind(index, match.last), 1, match.last)
    return _spread(index, match.first, match.end, matched, match.last)


def _spread(index: TokenIndex, first: int, end: int, matched: int, last: int) -> Range:
    while index.shared[first] >= matched:
        first -= 1
    while end < index.tokens and index.shared[end] >= matched:
        end += 1
    return Range(first, end, matched, last)
