"""Protocol of a cache for all sequences of a model, one slot for each."""

from collections.abc import Sequence
from typing import Any, Protocol

from draftwood.models.cache.places import CacheSlice


class SlotPool(Protocol):
    """Keys and values of every layer, in blocks on the host or in a device's tensors.

    Attributes:
        lock: for a forward pass and all that prepares it; not re-entrant.
    """

    lock: Any

    def acquire(self, owner: object) -> int:
        """The first free slot, for this owner."""
        ...

    def release(self, owner: object) -> None:
        """Take the owner's slot back; never waits."""
        ...

    def cover(self, places: Sequence[CacheSlice]) -> None:
        """Make room for the new tokens of a forward pass."""
        ...

    def keep(self, slot: int, start: int, path: Sequence[int]) -> None:
        """Move the tokens at ``start + path`` to ``start``, in order."""
        ...

    def copy(self, source: int, target: int, length: int) -> None:
        """Let one slot begin with the first ``length`` tokens of another."""
        ...

    def blocks_wanted(self, slot: int, start: int, count: int) -> int:
        """Blocks to find before so many places of a slot are written; 0 where there are none."""
        ...

    def places(self, slot: int, start: int, end: int) -> Any:
        """Keys and values of each layer from place to place of a slot, each [places heads dim]."""
        ...

    def layer_of(self, slot: int, index: int, length: int) -> tuple[Any, Any]:
        """Keys and values of one layer and a slot's first tokens, each [heads length dim]."""
        ...

    def write(self, slot: int, index: int, keys: Any, values: Any, length: int) -> None:
        """Store a layer's newest keys and values, each [heads tokens dim], of ``length`` tokens."""
        ...
