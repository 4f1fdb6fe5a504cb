"""A cache in blocks for models some of whose layers keep a running state."""

from collections.abc import Sequence

import numpy as np

from draftwood.arrays import address_of, aligned
from draftwood.models.cache.blocks import BlockPool, BlockTable
from draftwood.models.cache.places import PLACES, CacheSlice
from draftwood.native import library, structures
from draftwood.native.formats import CacheNumbers

LATE = PLACES // 2
"""Places of a block behind which no token of the block before it is likely to be taken back."""

MOST_SPARE, MOST_SPARE_BYTES = 8, 1 << 30
"""Memories of texts that nobody writes, from which prompts that begin alike go on; one at least."""


class StateBlocks(BlockPool):
    """Blocks of which some have a memory: the state at their beginning, and what their places fed
    to the recurrences; see recurrences.h.

    A memory takes megabytes, so a sequence has one for the block that it writes in, and one or two
    more. Where tokens are taken back to before these, or a prompt begins like a text whose memory
    is gone, the tokens since the last one are run again.
    """

    def __init__(self, shape: structures.CCacheShape, numbers: CacheNumbers) -> None:
        super().__init__(shape, numbers)
        self._memory_bytes: int = library.library().draftwood_memory_bytes(shape)
        self._tail = library.library().draftwood_cache_tail(shape)
        self._most_spare = min(MOST_SPARE, max(1, MOST_SPARE_BYTES // max(1, self._memory_bytes)))
        self._memories: dict[int, np.ndarray] = {}  # by block, the oldest first
        self._unused: list[np.ndarray] = []
        self._branches: dict[int, int] = {}  # by slot: a block whose memory other texts will want

    @property
    def bytes(self) -> int:
        count = len(self._memories) + len(self._unused)
        return super().bytes + count * self._memory_bytes

    def sure_until(self, slot: int, length: int) -> int:
        place, blocks = length, self.blocks_of(slot)
        while place and not self._goes_on(blocks, place):
            place = (place - 1) // PLACES * PLACES
        return place

    def branch(self, slot: int, length: int) -> None:
        self._branches[slot] = length // PLACES - 1

    def has_memory(self, block: int) -> bool:
        return self._is_known(block)

    def goes_on_behind(self, blocks: Sequence[int]) -> bool:
        return self._goes_on(blocks, PLACES * len(blocks))

    def tokens(self, slot: int, start: int, end: int) -> list[int]:
        """Tokens of a slot from place to place."""
        found = [self._tail_of(block)[1:] for block in self.blocks_of(slot)[: self.blocks_for(end)]]
        return np.concatenate(found)[start:end].tolist() if found else []

    def cover_states(self, places: Sequence[CacheSlice]) -> None:
        """Have memories for the new tokens of a pass; MemoryError where the system has none."""
        for place in places:
            table, last = self._tables[place.slot], (place.start + place.count - 1) // PLACES
            first = place.start // PLACES
            self._forget_before(table, first, place.start % PLACES)
            wanted = {last, self._branches.get(place.slot)} if place.is_text else range(first, last)
            wanted = {*wanted, last}.intersection(range(first, last + 1))
            for index in range(first + 1, table.count):
                memory = self._memories.get(table.addresses[index])
                if memory is not None and index in wanted:
                    memory[:8] = 0  # of other tokens
                elif self._refs[table.addresses[index]] == 1:
                    self._forget(table.addresses[index])
            for index in wanted:
                if table.addresses[index] not in self._memories:
                    self._remember(table.addresses[index])

    def _goes_on(self, blocks: Sequence[int], place: int) -> bool:
        """True if a pass may begin at a place behind others."""
        index, within = divmod(place, PLACES)
        if within == 0 and index < len(blocks) and self._is_known(blocks[index]):
            return True
        index = (place - 1) // PLACES
        while index and blocks[index] in self._memories and not self._is_known(blocks[index]):
            index -= 1
        return blocks[index] in self._memories

    def _is_known(self, block: int) -> bool:
        """True if the state at the beginning of a block is known."""
        memory = self._memories.get(block)
        return memory is not None and bool(memory[0])

    def _forget_before(self, table: BlockTable, first: int, within: int) -> None:
        """Give back the memories of blocks that no row of a pass reads any more."""
        if not self._is_known(table.addresses[first]):
            return
        for block in table.addresses[: first if within >= LATE else max(0, first - 1)]:
            if self._refs[block] == 1:
                self._forget(block)

    def _remember(self, block: int) -> None:
        memory = self._unused.pop() if self._unused else aligned(self._memory_bytes)
        memory[:8] = 0
        self._memories[block] = memory
        self._tail_of(block)[0] = address_of(memory)

    def _forget(self, block: int) -> None:
        memory = self._memories.pop(block, None)
        if memory is not None:
            self._tail_of(block)[0] = 0
            if len(self._unused) < self._most_spare:
                self._unused.append(memory)

    def _tail_of(self, block: int) -> np.ndarray:
        """View a block's tail: the address of its memory, and the tokens of its places."""
        tail = self._rows[block][self._tail : self._tail + 8 * (1 + PLACES)]
        return tail.view(np.int64)

    def _take(self) -> int:
        block = super()._take()
        self._tail_of(block)[0] = 0
        return block

    def _copy_of(self, block: int) -> int:
        new = super()._copy_of(block)
        self._tail_of(new)[0] = 0
        if block in self._memories:
            self._remember(new)
            self._memories[new][:] = self._memories[block]
        return new

    def _drop(self, block: int) -> None:
        super()._drop(block)
        if block not in self._refs:
            self._forget(block)
        elif block in self._held and self.is_spare(block):
            self._forget_spare()

    def _forget_spare(self) -> None:
        """Keep the newest of the memories of blocks that belong to no sequence."""
        spare = [each for each in self._memories if each in self._held and self.is_spare(each)]
        for block in spare[: max(0, len(spare) - self._most_spare)]:
            self._forget(block)

    def _tidy(self) -> None:
        super()._tidy()
        for slot in self._branches.keys() - self._tables.keys():
            del self._branches[slot]
        if not self._tables:
            self._unused.clear()

    def _most(self) -> int:
        assert self.limit is not None
        return max(0, self.limit - len(self._memories) * self._memory_bytes) // self.block_bytes
