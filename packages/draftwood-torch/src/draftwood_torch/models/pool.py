"""A preallocated KV cache for several sequences, each with a tree of which one path is kept."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from weakref import ref

import torch
from torch import Tensor

from draftwood.models.cache.places import PATIENCE, CacheSlice, far_too_much
from draftwood.storage.memory import is_lack_of_memory, prefer_large_pages

Shape = tuple[int, int]  # heads, dim


@dataclass(frozen=True)
class LayerShape:
    """Shapes of one decoder layer's keys and values, each (heads, dim)."""

    key: Shape
    value: Shape


class CachePool:
    """Keys and values of every layer for a number of slots, one slot per sequence.

    Tensors of equal shape live in one block [tensors slots capacity heads dim], so that keeping a
    path moves the tail of all layers with one operation and a sequence's keys in one layer lie side
    by side. Slots and capacity grow geometrically; places that an owner has not used are zero,
    since what a padded forward pass reads by accident must be finite. What two times of use in a
    row did not need goes back to the system (see ``_tidy``).

    Threads take turns: who reads or writes the memory, or makes room in it, holds ``lock``. Nobody
    waits for anything else while holding it. A slot belongs to its owner until this gives it back
    or is no more.

    Attributes:
        lock: for a forward pass and all that prepares it; not re-entrant.
        when_moved: called when the memory has new addresses, to drop what was made of the old ones.
    """

    def __init__(
        self, layers: Sequence[LayerShape], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.dtype, self.device = dtype, device
        self.slots, self.capacity = 0, 0
        self.lock = threading.Lock()
        self.when_moved: Callable[[], object] = _nothing
        self._owners: dict[ref[object], int] = {}  # with their slots
        self._ends: dict[int, int] = {}  # how far the tokens of each slot reach
        self._left: dict[int, int] = {}  # likewise those of the owner before, not cleared yet
        # slots and places needed since the last look, and before it
        self._peak, self._peak_before = (0, 0), (0, 0)
        self._ended, self._untidy = 0, False
        places: dict[Shape, int] = {}
        self._where: list[tuple[tuple[Shape, int], tuple[Shape, int]]] = []
        for layer in layers:
            pair = []
            for shape in (layer.key, layer.value):
                pair.append((shape, places.get(shape, 0)))
                places[shape] = places.get(shape, 0) + 1
            self._where.append((pair[0], pair[1]))
        self._blocks = {shape: self._zeros(count, shape) for shape, count in places.items()}

    @property
    def bytes(self) -> int:
        """Memory taken."""
        return sum(block.numel() * block.element_size() for block in self._blocks.values())

    @property
    def addresses(self) -> list[int]:
        """Addresses of the tensors of each shape, in the order in which shapes first came."""
        return [block.data_ptr() for block in self._blocks.values()]

    @property
    def used(self) -> set[int]:
        """Slots that belong to somebody."""
        for owner in list(self._owners):
            if owner() is None:
                self._owners.pop(owner, None)
        return set(self._owners.values())

    def acquire(self, owner: object) -> int:
        """The first free slot, for this owner."""
        with self.lock:
            slot = min(set(range(self.slots + 1)) - self.used)
            if slot == self.slots:
                self._grow([(max(1, 2 * slot), self.capacity), (slot + 1, self.capacity)])
            self._left[slot] = max(self._left.get(slot, 0), self._ends.get(slot, 0))
            self._ends[slot] = 0
            self._peak = (max(self._peak[0], slot + 1), self._peak[1])
            self._owners[ref(owner)] = slot
        return slot

    def release(self, owner: object) -> None:
        """Take the owner's slot back.

        Never waits, as the garbage collector may call this in the midst of a forward pass.
        """
        if self._owners.pop(ref(owner), None) is None:
            return
        self._untidy = True
        # otherwise who holds it gives a slot back later
        while self._untidy and self.lock.acquire(blocking=False):
            try:
                self._tidy()
            finally:
                self.lock.release()

    def reserve(self, length: int) -> None:
        """Make room for this many tokens in every slot.

        Raises:
            MemoryError: where there is no memory even for just these; what is in the cache stays.
        """
        self._peak = (self._peak[0], max(self._peak[1], length))
        if length > self.capacity:
            self._grow([(self.slots, max(128, 2 * self.capacity, length)), (self.slots, length)])

    def cover(self, places: Sequence[CacheSlice]) -> None:
        """Make room for the new tokens of a forward pass; errors as for ``reserve``."""
        for place in places:
            self._clear_behind(place.slot, 0)
            self._ends[place.slot] = max(self._ends[place.slot], place.start + place.count)
        self.reserve(max(place.start + place.count for place in places))

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, each [slots capacity heads dim]."""
        (key_shape, key), (value_shape, value) = self._where[index]
        return self._blocks[key_shape][key], self._blocks[value_shape][value]

    def layer_of(self, slot: int, index: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer and a slot's first tokens, each [heads length dim]."""
        keys, values = (each[slot, :length].transpose(0, 1) for each in self.layer(index))
        return keys, values

    def places(self, slot: int, start: int, end: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer from place to place of a slot, each [places heads dim]."""
        parts = {shape: block[:, slot, start:end].unbind() for shape, block in self._blocks.items()}
        return [(parts[key[0]][key[1]], parts[value[0]][value[1]]) for key, value in self._where]

    def keep(self, slot: int, start: int, path: Sequence[int]) -> None:
        """Move the tokens at ``start + path`` to ``start``, in order.

        Whatever lies after them is garbage.
        """
        if list(path) == list(range(len(path))):
            return
        with self.lock:
            self._move(slot, start, path)

    def copy(self, source: int, target: int, length: int) -> None:
        """Write the first ``length`` tokens of one slot to another, which is in use too."""
        with self.lock:
            self._clear_behind(target, length)
            self._ends[target] = max(self._ends[target], length)
            self._duplicate(source, target, length)

    def blocks_wanted(self, slot: int, start: int, count: int) -> int:
        """There are no blocks."""
        return 0

    def write(self, slot: int, index: int, keys: Tensor, values: Tensor, length: int) -> None:
        """Store a layer's newest keys and values, each [heads tokens dim], of ``length`` tokens.

        There is room for them; the lock is the caller's.
        """
        self._clear_behind(slot, 0)
        self._ends[slot] = max(self._ends[slot], length)
        for ours, theirs in zip(self.layer(index), (keys, values), strict=True):
            start = max(0, length - theirs.shape[1])
            newest = theirs[:, theirs.shape[1] - (length - start) :]
            ours[slot, start:length] = newest.transpose(0, 1)

    def _clear_behind(self, slot: int, start: int) -> None:
        """Clear what the owner before left from a place on."""
        if (end := self._left.pop(slot, 0)) > start:
            self._clear(slot, start, end)

    def _clear(self, slot: int, start: int, end: int) -> None:
        for block in self._blocks.values():
            block[:, slot, start:end] = 0

    def _move(self, slot: int, start: int, path: Sequence[int]) -> None:
        nodes = torch.tensor(path).to(self.device, non_blocking=True) + start
        for block in self._blocks.values():
            block[:, slot, start : start + len(path)] = block[:, slot].index_select(1, nodes)

    def _duplicate(self, source: int, target: int, length: int) -> None:
        for block in self._blocks.values():
            block[:, target, :length] = block[:, source, :length]

    @torch.inference_mode(False)  # others may write to them after it
    def _zeros(self, count: int, shape: Shape, slots: int = 0, capacity: int = 0) -> Tensor:
        heads, dim = shape
        sizes = (count, slots, capacity, heads, dim)
        block = torch.empty(*sizes, dtype=self.dtype, device=self.device)
        if self.device.type == "cpu":
            prefer_large_pages(block.data_ptr(), block.nbytes)
        return block.zero_()

    def _grow(self, sizes: Sequence[tuple[int, int]]) -> None:
        """Take the first of these numbers of slots and places for which there is memory."""
        for slots, capacity in sizes:
            try:
                return self._resize(slots, capacity)
            except (RuntimeError, MemoryError) as error:
                if not is_lack_of_memory(error):
                    raise
        slots, capacity = sizes[-1]
        raise MemoryError(
            f"there is no memory for a cache of {slots} sequences of {capacity} tokens; shorten the"
            " prompt, run fewer requests at once, or take a smaller model"
        )

    def _tidy(self) -> None:
        """Give back memory that nobody needs, once the pool is out of use or was in use for long.

        What was needed both since the last look and before it stays, so that a request of unusual
        size takes its memory with it, and equal requests one after the other find theirs again.
        """
        self._untidy = False
        self._ended += 1
        used = self.used
        if used and self._ended < PATIENCE * self.slots:
            return
        now = max(used, default=-1) + 1, max((self._ends[slot] for slot in used), default=0)
        slots, places = (max(now[i], min(self._peak[i], self._peak_before[i])) for i in range(2))
        self._peak, self._peak_before, self._ended = now, self._peak, 0
        if not far_too_much(self.slots * self.capacity, slots * places):
            return
        # there may be no memory for a smaller copy either
        with suppress(RuntimeError, MemoryError):
            self._resize(*((slots, places) if used else (0, 0)))

    def _resize(self, slots: int, capacity: int) -> None:
        """Move what is there to blocks of another size, as far as it goes in."""
        blocks = {
            shape: self._zeros(len(old), shape, slots, capacity)
            for shape, old in self._blocks.items()
        }
        for shape, old in self._blocks.items():
            both = (slice(None), slice(min(slots, self.slots)), slice(min(capacity, self.capacity)))
            blocks[shape][both] = old[both]
        self._blocks, self.slots, self.capacity = blocks, slots, capacity
        for slot in [each for each in self._ends if each >= slots]:  # new ones will be clean
            self._ends.pop(slot)
            self._left.pop(slot, None)
        self.when_moved()


def _nothing() -> None:
    """Nothing was made of the addresses."""
