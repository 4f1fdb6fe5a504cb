"""A KV cache in blocks of 32 places, which several sequences may share."""

import ctypes
import heapq
import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from weakref import WeakSet, ref

import numpy as np

from draftwood.arrays import address_of, aligned, as_array
from draftwood.models.cache.places import (
    PATIENCE,
    PLACES,
    CacheSlice,
    far_too_much,
)
from draftwood.models.model import CacheFullError
from draftwood.native import library, structures
from draftwood.native.formats import CacheNumbers
from draftwood.storage.memory import available_memory, prefer_large_pages

if TYPE_CHECKING:
    from draftwood.models.cache.block_views import BlockViews
    from draftwood.models.cache.lost_lock import LostLock

FIRST = 4
"""Blocks that are asked of the system at first; later as many as there are."""


class BlockTable:
    """The blocks of one sequence, by their addresses.

    Attributes:
        shared: so many of the first blocks may have further owners.
    """

    def __init__(self) -> None:
        self.addresses = library.integers([0] * 8)
        self.count, self.shared = 0, 0

    @property
    def address(self) -> int:
        """Address at which the library reads the blocks' own, until the table grows."""
        return ctypes.addressof(self.addresses)

    def blocks(self) -> list[int]:
        return self.addresses[: self.count]

    def append(self, block: int) -> None:
        if self.count == len(self.addresses):
            self.addresses = library.integers([*self.addresses, *([0] * self.count)])
        self.addresses[self.count] = block
        self.count += 1


class BlockHolder(Protocol):
    """Whoever keeps blocks beyond their sequences."""

    def evict(self, count: int) -> None:
        """Give up to so many blocks back that no sequence has, by ``release_block``; locked."""
        ...

    def clear(self) -> None:
        """Give all blocks back."""
        ...


class BlockPool:
    """Keys and values of every layer for a number of sequences, in blocks with several owners.

    A block belongs to the tables of sequences, and to whoever else has ``hold`` on it. What has
    several owners is never written to: a sequence that would do so gets a copy first. Memory comes
    from the system in slabs of blocks, each as large as all before it, and none of them ever moves.

    Threads take turns as with ``CachePool``. In a process that was forked during another thread's
    turn the pool is lost, and raises RuntimeError.

    Attributes:
        limit: most bytes that it may take; None for no limit.
        holder: of blocks that no sequence has; asked for them back where memory ends.
        beside: blocks for which each text has bytes beside its own, at most.
    """

    beside: int = 0

    def __init__(self, shape: structures.CCacheShape, numbers: CacheNumbers) -> None:
        self.shape = shape
        self._numbers: CacheNumbers = numbers
        self.lock: threading.Lock | LostLock = threading.Lock()
        _pools.add(self)
        self.limit: int | None = None
        self.holder: BlockHolder | None = None
        self.block_bytes: int = library.library().draftwood_cache_block(shape)
        self._keep = library.library().draftwood_keep_path
        self._owners: dict[ref[object], int] = {}  # with their slots
        self._closed: deque[int] = deque()  # slots whose blocks are to be taken back
        self._tables: dict[int, BlockTable] = {}
        self._slabs: list[np.ndarray] = []
        self._rows: dict[int, np.ndarray] = {}  # by address
        self._free: list[int] = []  # a heap
        self._refs: dict[int, int] = {}  # of blocks in use
        self._held: set[int] = set()
        self._spare = 0  # blocks that are held and belong to no sequence
        self._peak, self._peak_before, self._ended = 0, 0, 0

    @cached_property
    def _views(self) -> "BlockViews":
        from draftwood.models.cache.block_views import BlockViews

        return BlockViews(self.shape, self._numbers)

    @property
    def bytes(self) -> int:
        """Memory taken of the system."""
        return len(self._rows) * self.block_bytes

    @property
    def used(self) -> set[int]:
        """Slots that belong to somebody."""
        slots = list(self._owners.values())
        return set(slots)

    @property
    def used_blocks(self) -> int:
        """Blocks that belong to sequences."""
        self._reap_if_free()
        return len(self._refs) - self._spare

    @property
    def free_blocks(self) -> int | None:
        """Blocks that new tokens may still take, also of those that are only held; None where
        there is no limit.
        """
        self._reap_if_free()
        return None if self.limit is None else self._most() - len(self._refs) + self._spare

    def take_part(self, parts: int) -> None:
        """Limit the pool to one of so many parts of what is free now, where the system says it."""
        free = available_memory()
        self.limit = None if free is None else free // parts

    places_per_block: ClassVar[int] = PLACES

    @staticmethod
    def blocks_for(length: int) -> int:
        """Blocks that so many tokens take."""
        return -(-length // PLACES)

    def blocks_wanted(self, slot: int, start: int, count: int) -> int:
        """Blocks to find before so many places of a slot are written, copies included."""
        return self._wanted(self._tables[slot], start // PLACES, self.blocks_for(start + count))

    def acquire(self, owner: object) -> int:
        """The first free slot, for this owner."""
        with self.lock:
            self._reap()
            slot = next(slot for slot in range(len(self._tables) + 1) if slot not in self._tables)
            self._tables[slot] = BlockTable()
            self._owners[ref(owner, self._gone)] = slot
        return slot

    def release(self, owner: object) -> None:
        """Take the owner's slot and blocks back.

        Never waits, as the garbage collector may call this in the midst of a forward pass.
        """
        self._gone(ref(owner))
        self._reap_if_free()

    def cover(self, places: Sequence[CacheSlice]) -> None:
        """Find blocks for the new tokens of a forward pass, of which no other owner reads.

        Raises:
            CacheFullError: where the limit leaves too few; nothing has changed then.
            MemoryError: likewise where the system has none.
        """
        self._reap()
        short, count = [], 0
        for place in places:
            table, end = self._tables[place.slot], self.blocks_for(place.start + place.count)
            first = place.start // PLACES
            if end > table.count or first < table.shared:
                count += self._wanted(table, first, end)
                short.append((table, first, end))
        if short:
            self._find(count)
            for each in short:
                self._make_own(*each)

    def address_of(self, slot: int) -> int:
        """Address of a slot's table for the library; good until ``cover`` is called again."""
        return self._tables[slot].address

    def blocks_of(self, slot: int) -> list[int]:
        """The addresses of a slot's blocks; likewise."""
        return self._tables[slot].blocks()

    def beginning_alike(self, slots: Sequence[int]) -> list[int]:
        """Order the numbers of slots so that those that begin with the same blocks are neighbours.

        The library then reads such blocks once for all of them.
        """
        if len(slots) == 1:
            return [0]
        tables = [self._tables[slot].blocks() for slot in slots]
        return sorted(range(len(slots)), key=tables.__getitem__)

    def cover_states(self, places: Sequence[tuple[CacheSlice, int]]) -> None:
        """Have what running states take for the new tokens of a pass, where a model has any; call
        it behind ``cover``, which raises alike, with the committed tokens before each.
        """

    def sure_until(self, blocks: Sequence[int], length: int) -> int:
        """Give the last place of a text in these blocks, at most its end, behind which a pass may
        begin.
        """
        return length

    def branch(self, slot: int, length: int) -> None:
        """Have a slot's text keep what others go on from that branch off behind so many tokens."""

    def has_memory(self, block: int) -> bool:
        """True if a block has more than keys and values, which texts go on from."""
        return False

    def keep(self, slot: int, start: int, path: Sequence[int]) -> None:
        """Move the tokens at ``start + path`` to ``start``, in order.

        Whatever lies after them is garbage.
        """
        if list(path) == list(range(len(path))):
            return
        if min(path) < 0:
            raise ValueError(f"nodes are numbered from 0 on, got {list(path)}")
        with self.lock:
            self.cover([CacheSlice(slot, start, len(path))])
            table = self._tables[slot].address
            self._keep(self.shape, table, start, library.integers(path), len(path))

    def copy(self, source: int, target: int, length: int) -> None:
        """Let one slot begin with the first ``length`` tokens of another: whole blocks are shared,
        and the rest is copied. Errors as for ``cover``.
        """
        with self.lock:
            whole, rest = divmod(length, PLACES)
            blocks = self._tables[source].blocks()
            if rest:
                self._find(1)
            self._share(target, blocks[:whole])
            self._tables[source].shared = max(self._tables[source].shared, whole)
            if rest:
                self._tables[target].append(self._copy_of(blocks[whole]))

    def begin(self, slot: int, blocks: Sequence[int]) -> None:
        """Let a slot begin with blocks that somebody holds; the lock is the caller's."""
        self._share(slot, blocks)

    def hold(self, slot: int, index: int) -> int | None:
        """Own one of a slot's blocks too, until ``release_block``; None where somebody does. The
        lock is the caller's.
        """
        table = self._tables[slot]
        block = table.addresses[index]
        if block in self._held:
            return None
        table.shared = max(table.shared, index + 1)
        self._refs[block] += 1
        self._held.add(block)
        return block

    def is_spare(self, block: int) -> bool:
        """True if a block that is held belongs to no sequence."""
        return self._refs[block] == 1

    def release_block(self, block: int) -> None:
        """End what ``hold`` began; the lock is the caller's."""
        self._spare -= self.is_spare(block)
        self._held.remove(block)
        self._drop(block)

    def places(self, slot: int, start: int, end: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Keys and values of each layer from place to place of a slot, each [places heads dim]; of
        bytes then their scales, each [places heads]. All of them are copies.
        """
        rows = [self._rows[block] for block in self._tables[slot].blocks()]
        return self._views.read(rows, start, end)

    def layer_of(self, slot: int, index: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of one layer and a slot's first tokens, each [heads length dim]; copies.

        Of floats alone.
        """
        rows = [self._rows[block] for block in self._tables[slot].blocks()]
        rows = rows[: self.blocks_for(length)]
        return self._views.layer(rows, index, length)

    def write(self, slot: int, index: int, keys: Any, values: Any, length: int) -> None:
        """Store a layer's newest keys and values, each [heads tokens dim], of ``length`` tokens.

        There is room for them; the lock is the caller's.
        """
        rows = [self._rows[block] for block in self._tables[slot].blocks()]
        for half, numbers in enumerate(map(as_array, (keys, values))):
            start = max(0, length - numbers.shape[1])
            newest = numbers[:, numbers.shape[1] - (length - start) :].transpose(1, 0, 2)
            self._views.write(rows, 2 * index + half, start, newest)

    def _most(self) -> int:
        assert self.limit is not None
        return self.limit // self.block_bytes

    def _gone(self, owner: "ref[object]") -> None:
        """Called by the garbage collector too; everything here happens at once or not."""
        slot = self._owners.pop(owner, None)
        if slot is not None:
            self._closed.append(slot)

    def _reap_if_free(self) -> None:
        # otherwise who holds the lock takes the blocks back when it needs some
        while self._closed and self.lock.acquire(blocking=False):
            try:
                self._reap()
            finally:
                self.lock.release()

    def _reap(self) -> None:
        """Take back what belonged to closed sequences."""
        while self._closed:
            for block in self._tables.pop(self._closed.popleft()).blocks():
                self._drop(block)
            self._tidy()

    def _drop(self, block: int) -> None:
        self._refs[block] -= 1
        if not self._refs[block]:
            del self._refs[block]
            heapq.heappush(self._free, block)
        elif self._refs[block] == 1 and block in self._held:
            self._spare += 1

    def _share(self, slot: int, blocks: Sequence[int]) -> None:
        table = self._tables[slot]
        for block in table.blocks():  # of tokens that were taken back
            self._drop(block)
        table.count, table.shared = 0, len(blocks)
        for block in blocks:
            self._spare -= block in self._held and self._refs[block] == 1
            self._refs[block] += 1
            table.append(block)

    def _wanted(self, table: BlockTable, first: int, end: int) -> int:
        shared = range(first, min(table.shared, end))
        copies = sum(self._refs[table.addresses[index]] > 1 for index in shared)
        return copies + max(0, end - table.count)

    def _make_own(self, table: BlockTable, first: int, end: int) -> None:
        for index in range(first, min(table.shared, end)):
            block = table.addresses[index]
            if self._refs[block] > 1:
                table.addresses[index] = self._copy_of(block)
                self._drop(block)
        if end >= table.shared:
            table.shared = min(table.shared, first)
        while table.count < end:
            table.append(self._take())

    def _take(self) -> int:
        block = heapq.heappop(self._free)
        self._refs[block] = 1
        self._peak = max(self._peak, len(self._refs) - self._spare)
        return block

    def _copy_of(self, block: int) -> int:
        new = self._take()
        ctypes.memmove(new, block, self.block_bytes)
        return new

    def _find(self, count: int) -> None:
        """Have so many blocks free; errors as for ``cover``."""
        if self.limit is not None and count > self._most() - len(self._refs) + self._spare:
            raise CacheFullError(
                f"the cache needs {count} more blocks of {PLACES} tokens, and its {self.limit}"
                f" bytes hold {self._most()}, of which {len(self._refs) - self._spare} are in use;"
                " close a session, shorten the prompt, or allow more memory"
            )
        while len(self._free) < count and self._grow(count - len(self._free)):
            pass
        if len(self._free) < count and self.holder is not None:
            self.holder.evict(count - len(self._free))
        if len(self._free) < count:
            raise MemoryError(
                f"there is no memory for {count} more blocks of {PLACES} tokens; shorten the"
                " prompt, run fewer requests at once, or take a smaller model"
            )

    def _grow(self, count: int) -> bool:
        """Ask the system for another slab, of this many blocks or more; False where it has none."""
        room = count if self.limit is None else self._most() - len(self._rows)
        usual = max(count, len(self._rows), FIRST)
        for number in (usual, count):
            number = number if self.limit is None else min(number, room)
            with suppress(MemoryError):
                if number > 0:
                    self._add_slab(number)
                    return True
        return False

    def _add_slab(self, number: int) -> None:
        slab = aligned(number * self.block_bytes).reshape(number, self.block_bytes)
        prefer_large_pages(address_of(slab), slab.nbytes)
        self._slabs.append(slab)
        for row in slab:
            self._rows[address_of(row)] = row
            heapq.heappush(self._free, address_of(row))

    def _tidy(self) -> None:
        """Give back slabs that nobody needs, once the pool is out of use or was in use for long; as
        ``CachePool`` does.
        """
        self._ended += 1
        if self._tables and self._ended < PATIENCE * len(self._tables):
            return
        now = len(self._refs) - self._spare
        stays = max(now, min(self._peak, self._peak_before))
        self._peak, self._peak_before, self._ended = now, self._peak, 0
        for slab in sorted(self._slabs, key=len, reverse=True):
            if not far_too_much(PLACES * len(self._rows), PLACES * stays):
                return
            addresses = {address_of(row) for row in slab}
            if addresses.isdisjoint(self._refs):
                self._slabs = [other for other in self._slabs if other is not slab]
                for address in addresses:
                    del self._rows[address]
                self._free = [block for block in self._free if block not in addresses]
                heapq.heapify(self._free)


_pools = WeakSet[BlockPool]()


def _after_fork() -> None:
    for pool in _pools:
        if pool.lock.acquire(blocking=False):
            pool.lock.release()
        else:
            from draftwood.models.cache.lost_lock import LostLock

            pool.lock = LostLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
