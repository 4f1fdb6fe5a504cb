"""Places of sequences in a cache, the same for caches in one piece and in blocks."""

from dataclasses import dataclass

PLACES = 32
"""Tokens of a block; as in cache.h."""

USUAL_PLACES = 512
"""Needed by one request or another at any time."""

FAR_TOO_MUCH = 4
"""Times the places that are needed; a pool that doubles its slots and their places stays below."""

PATIENCE = 16
"""Requests per slot that end before a pool that is always in use is looked at."""


def far_too_much(held: int, needed: int) -> bool:
    """True if so many places are more than a pool keeps where these are needed."""
    return held >= FAR_TOO_MUCH * max(needed, USUAL_PLACES)


@dataclass(frozen=True)
class CacheSlice:
    """Places of one sequence's new tokens: ``count`` of them in ``slot`` from ``start`` on.

    Attributes:
        is_text: whether they are appended for good.
    """

    slot: int
    start: int
    count: int
    is_text: bool = False
