"""Places of sequences in the cache as the library reads them: ``Sequence`` of visibility.h."""

import ctypes
from collections.abc import Sequence
from typing import Any

from draftwood.models.cache.blocks import PLACES, BlockPool
from draftwood.models.parts import PackedInput, PackedStep
from draftwood.native import library


def sequences(pool: BlockPool, parts: Sequence[PackedInput]) -> tuple[Any, list[Any]]:
    """Describe trees and prompts; with tables of blocks that must stay in memory as long."""
    numbers, tables = list[int](), list[Any]()
    for part in parts:
        place, unread = part.place, len(part.unread)
        address = pool.address_of(place.slot)
        if unread:
            tables.append(_without(pool.blocks_of(place.slot), part.unread))
            address = ctypes.addressof(tables[-1])
        before = part.before - unread
        numbers += place.slot, place.start - unread, place.count, before, part.wanted, address
    return library.integers(numbers), tables


def _without(blocks: list[int], unread: range) -> Any:
    """A table without the blocks that a window leaves out.

    The text is read as if these were not there: its positions are in the keys.
    """
    return library.integers([*blocks[: unread.start // PLACES], *blocks[unread.stop // PLACES :]])


def beginnings(pool: BlockPool, steps: Sequence[PackedStep]) -> Any:
    """Describe where texts go on; the library says how many nodes they have."""
    numbers: list[int] = []
    for part in steps:
        slot, start = part.place.slot, part.place.start
        numbers += (slot, start, 0, start, 0, pool.address_of(slot))
    return library.integers(numbers)
