"""A pool of caches as the code of Transformers reads and writes it."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.cache_utils import Cache

from draftwood.models.cache.places import CacheSlice
from draftwood_torch.models.pool import CachePool


class RunCache(Cache):
    """The pool as Transformers sees it during one forward pass."""

    def __init__(self, pool: CachePool, places: Sequence[CacheSlice]) -> None:
        super().__init__(layers=[])
        self.pool, self.places = pool, places
        self.width = max(place.start + place.count for place in places)
        slots = [place.slot for place in places]
        self.adjacent = slots == list(range(slots[0], slots[0] + len(slots)))
        self.index = None if self.adjacent else torch.tensor(slots, device=pool.device)
        self._tokens = _places_of_tokens(places, pool.device) if len(places) > 1 else None

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Store the new tokens' keys and values; give back all of the sequences so far.

        Each is [batch heads tokens dim].
        """
        keys, values = self.pool.layer(layer_idx)
        for ours, new in ((keys, key_states), (values, value_states)):
            self._store(ours, new.transpose(1, 2))
        return self._rows(keys), self._rows(values)

    def finish(self) -> None:
        """The pass is over: keys and values are where they belong."""

    def _store(
        self,
        ours: Float[Tensor, "slots capacity heads dim"],
        new: Float[Tensor, "batch tokens heads dim"],
    ) -> None:
        if self._tokens is None:
            place = self.places[0]
            ours[place.slot, place.start : place.start + place.count] = new[0, : place.count]
        else:
            rows, columns, slots, places = self._tokens
            ours[slots, places] = new[rows, columns].to(ours.dtype)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return max(place.start for place in self.places)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.width, 0

    def _rows(self, tensor: Tensor) -> Tensor:
        first = self.places[0].slot
        slots = slice(first, first + len(self.places)) if self.index is None else self.index
        return tensor[slots, : self.width].transpose(1, 2)


def _places_of_tokens(places: Sequence[CacheSlice], device: torch.device) -> tuple[Tensor, ...]:
    """For each new token its row and column in the pass, and its slot and place in the pool, so
    that all rows are stored at once.
    """
    found = [
        (row, column, place.slot, place.start + column)
        for row, place in enumerate(places)
        for column in range(place.count)
    ]
    return torch.tensor(found).to(device, non_blocking=True).unbind(-1)
