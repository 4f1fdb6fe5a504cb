"""A cache in blocks for models some of whose layers keep a running state."""

from collections.abc import Sequence

import numpy as np

from draftwood.arrays import address_of, aligned
from draftwood.models.cache.blocks import BlockPool, BlockTable
from draftwood.models.cache.places import PLACES, CacheSlice
from draftwood.models.model import CacheFullError
from draftwood.native import library, structures
from draftwood.native.formats import CacheNumbers

LATE = PLACES // 2
"""Places of a block behind which no token of the block before it is likely to be taken back."""

MOST_SPARE, MOST_SPARE_BYTES = 8, 1 << 30
"""Memories of texts that nobody writes, from which prompts that begin alike go on; one at least."""

OF_A_TEXT = 4
"""Memories that a text takes at most, but for passes over more places."""


class StateBlocks(BlockPool):
    """Blocks of which some have a memory: the state at their beginning, and what their places fed
    to the recurrences; see recurrences.h.

    A memory takes megabytes, so a sequence has one for the block that it writes in, and one or two
    more. Where tokens are taken back to before these, or a prompt begins like a text whose memory
    is gone, the tokens since the last one are run again. Within the limit a memory counts as as
    many blocks as it has bytes for; those of blocks that no sequence has give way.
    """

    def __init__(self, shape: structures.CCacheShape, numbers: CacheNumbers) -> None:
        super().__init__(shape, numbers)
        self._memory_bytes: int = library.library().draftwood_memory_bytes(shape)
        self._tail = library.library().draftwood_cache_tail(shape)
        self._as_blocks = -(-self._memory_bytes // self.block_bytes)
        self._most_spare = min(MOST_SPARE, max(1, MOST_SPARE_BYTES // self._memory_bytes))
        self.beside = OF_A_TEXT * self._as_blocks
        self._memories: dict[int, np.ndarray] = {}  # by block, the longest unused first
        self._unused: list[np.ndarray] = []
        self._branches: dict[int, int] = {}  # by slot: a block whose memory other texts will want

    @property
    def bytes(self) -> int:
        count = len(self._memories) + len(self._unused)
        return super().bytes + count * self._memory_bytes

    def blocks_wanted(self, slot: int, start: int, count: int) -> int:
        place = CacheSlice(slot, start, count)
        new = min(OF_A_TEXT, self._new_memories(place, start))
        return super().blocks_wanted(slot, start, count) + new * self._as_blocks

    def begin(self, slot: int, blocks: Sequence[int]) -> None:
        super().begin(slot, blocks)
        for block in blocks:
            if block in self._memories:
                self._memories[block] = self._memories.pop(block)

    def sure_until(self, blocks: Sequence[int], length: int) -> int:
        place = length
        while place and not self._goes_on(blocks, place):
            place = (place - 1) // PLACES * PLACES
        return place

    def branch(self, slot: int, length: int) -> None:
        self._branches[slot] = length // PLACES - 1

    def has_memory(self, block: int) -> bool:
        return self._is_known(block)

    def holds_rows(self, slot: int, start: int, end: int) -> bool:
        """True if what was fed at these places of a slot, one at least, is in memories."""
        blocks = self.blocks_of(slot)[start // PLACES : self.blocks_for(end)]
        return all(block in self._memories for block in blocks)

    def tokens(self, slot: int, start: int, end: int) -> list[int]:
        """Tokens of a slot from place to place."""
        found = [self._tail_of(block)[1:] for block in self.blocks_of(slot)[: self.blocks_for(end)]]
        return np.concatenate(found)[start:end].tolist() if found else []

    def forget_behind(self, slot: int, length: int) -> None:
        """Give back a slot's memories of places behind so many tokens, which were not all run."""
        for block in self.blocks_of(slot)[length // PLACES :]:
            if self._refs[block] == 1:
                self._forget(block)

    def cover_states(self, places: Sequence[tuple[CacheSlice, int]]) -> None:
        for place, before in places:
            table, first = self._tables[place.slot], before // PLACES
            self._let_go(table, 1 + (place.start + place.count - 1) // PLACES)
            self._forget_before(table, first, before % PLACES)
        self._require_room(sum(self._new_memories(*each) for each in places))
        for place, before in places:
            table, wanted = self._tables[place.slot], self._wanted_memories(place, before)
            last = (place.start + place.count - 1) // PLACES
            for index in range(before // PLACES + 1, last + 1):
                block = table.addresses[index]
                if index in wanted and block in self._memories:
                    self._memories[block][:8] = 0  # of other tokens
                else:
                    self._forget(block)
            for index in wanted:
                if table.addresses[index] not in self._memories:
                    self._attach(table.addresses[index], self._new_memory())

    def _wanted_memories(self, place: CacheSlice, before: int) -> set[int]:
        """Blocks that need a memory: of nodes all that they are in, of a text the last one."""
        first, last = before // PLACES, (place.start + place.count - 1) // PLACES
        if not place.is_text:
            return set(range(first, last + 1))
        branch = self._branches.get(place.slot, last)
        return {last, branch} if first <= branch < last else {last}

    def _new_memories(self, place: CacheSlice, before: int) -> int:
        table, wanted = self._tables[place.slot], self._wanted_memories(place, before)
        known = table.addresses[: table.count]
        return sum(index >= len(known) or known[index] not in self._memories for index in wanted)

    def _require_room(self, count: int) -> None:
        """Let spare memories give way to so many new ones.

        Raises:
            CacheFullError: where the limit leaves too little.
        """
        if self.limit is None:
            return
        wanted, free = count * self._as_blocks, self._most() - len(self._refs) + self._spare
        if count and wanted > free:
            raise CacheFullError(
                f"running states of {count} more blocks need {count * self._memory_bytes} bytes,"
                f" and the cache's {self.limit} have {max(0, free) * self.block_bytes} left; close"
                " a session, or allow more memory"
            )
        room = self.limit - super().bytes - count * self._memory_bytes
        while self._unused and len(self._unused) > count:
            self._unused.pop()
        for block in self._spare_memories():
            if (len(self._memories) + len(self._unused)) * self._memory_bytes <= room:
                return
            self._forget(block)

    def _spare_memories(self) -> list[int]:
        """Blocks with a memory that belong to no sequence."""
        return [each for each in self._memories if each in self._held and self.is_spare(each)]

    def _let_go(self, table: BlockTable, first: int) -> None:
        """Let go of the states of tokens that were taken back: the text goes on otherwise."""
        own = range(first, table.count)
        end = next((i for i in own if self._refs[table.addresses[i]] > 1), table.count)
        for index in range(first, end):
            self._forget(table.addresses[index])
        while table.count > end:  # others go on with theirs
            table.count -= 1
            self._drop(table.addresses[table.count])
        table.shared = min(table.shared, table.count)

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
        if first >= table.count or not self._is_known(table.addresses[first]):
            return
        for block in table.addresses[: first if within >= LATE else max(0, first - 1)]:
            if self._refs[block] == 1:
                self._forget(block)

    def _new_memory(self) -> np.ndarray:
        memory = self._unused.pop() if self._unused else aligned(self._memory_bytes)
        memory[:8] = 0
        return memory

    def _attach(self, block: int, memory: np.ndarray) -> None:
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
        memory = self._new_memory() if block in self._memories else None
        new = super()._copy_of(block)
        self._tail_of(new)[0] = 0
        if memory is not None:
            memory[:] = self._memories[block]
            self._attach(new, memory)
        return new

    def _drop(self, block: int) -> None:
        super()._drop(block)
        if block not in self._refs:
            self._forget(block)
        elif block in self._held and self.is_spare(block):
            spare = self._spare_memories()
            for each in spare[: max(0, len(spare) - self._most_spare)]:
                self._forget(each)

    def _tidy(self) -> None:
        super()._tidy()
        for slot in self._branches.keys() - self._tables.keys():
            del self._branches[slot]
        if not self._tables:
            self._unused.clear()

    def _most(self) -> int:
        used = len(self._memories) - len(self._spare_memories())
        return super()._most() - used * self._as_blocks
