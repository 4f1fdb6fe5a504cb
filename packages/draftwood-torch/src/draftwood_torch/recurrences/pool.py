"""A cache for sequences of which some layers keep keys and values, others a running state."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftwood.models.parts import SequenceInput
from draftwood_torch.models.pool import CachePool, LayerShape
from draftwood_torch.models.tensor_input import TensorInput
from draftwood_torch.recurrences.base import Recurrence
from draftwood_torch.recurrences.memory import RecurrentMemory, lookback

MOST_ROWS = 32
"""Rows that are not part of the state; with more of them, all but the newest become part of it."""

NEWEST_ROWS = 8
"""Rows that stay out of the state, so that tokens can be taken back."""


class RecurrentPool(CachePool):
    """Keys and values of the layers that have any, and the memories of all recurrences.

    Args:
        shapes: of the layers with keys and values, by their number in the model.
        recurrences: in the order of their numbers.
    """

    def __init__(
        self,
        shapes: dict[int, LayerShape],
        recurrences: Sequence[Recurrence],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(list(shapes.values()), dtype, device)
        self.recurrences = recurrences
        self.before = lookback(recurrences)
        self._numbers = {layer: number for number, layer in enumerate(shapes)}
        self._empty = RecurrentMemory.empty(recurrences, torch.zeros(0, dtype=dtype, device=device))
        self._memories: dict[int, RecurrentMemory] = {}
        self._tokens: dict[int, list[int]] = {}

    @property
    def bytes(self) -> int:
        tensors = [
            tensor
            for memory in list(self._memories.values())
            for tensor in (*memory.states, *memory.rows)
        ]
        return super().bytes + sum(each.numel() * each.element_size() for each in tensors)

    def acquire(self, owner: object) -> int:
        slot = super().acquire(owner)
        self._memories[slot], self._tokens[slot] = self._empty, []
        return slot

    def _tidy(self) -> None:
        super()._tidy()
        used = self.used
        for slot in list(self._memories):  # the collector may come in the midst of it
            if slot not in used:
                self._memories.pop(slot, None)
                self._tokens.pop(slot, None)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        return super().layer(self._numbers[index])

    def keep(self, slot: int, start: int, path: Sequence[int]) -> None:
        super().keep(slot, start, path)
        memory = self._memories[slot].keep(start, path, self.before)
        self._memories[slot] = memory or self._empty
        tokens = self._tokens[slot]
        tokens[start:] = [tokens[start + node] for node in path]

    def copy(self, source: int, target: int, length: int) -> None:
        super().copy(source, target, length)
        memory = self._memories[source].until(length, self.before)
        self._memories[target] = memory or self._empty
        self._tokens[target] = self._tokens[source][:length]

    def missing(self, part: SequenceInput[Any]) -> tuple[int, list[int]]:
        """Tokens that must be run again before a part, and the place where they begin.

        They were taken back, or not taken over, from among those that the state had.
        """
        slot, start = part.place.slot, part.place.start
        memory = self._memories[slot].until(part.before, self.before)
        if memory is None:
            self._memories[slot] = self._empty
        end = self._memories[slot].end(self.before)
        return end, self._tokens[slot][end:start]

    def memory(self, part: TensorInput) -> RecurrentMemory:
        """Give what there is before the new rows of a part."""
        memory = self._memories[part.place.slot].until(part.place.start, self.before)
        assert memory is not None
        loose = part.before - memory.base
        if part.is_prompt or loose <= MOST_ROWS:
            return memory
        return memory.folded(self.recurrences, loose - NEWEST_ROWS)

    def remember(self, part: TensorInput, memory: RecurrentMemory) -> None:
        """Keep what there is after a part that was run."""
        slot, start = part.place.slot, part.place.start
        self._tokens[slot][start:] = part.tokens.tolist()
        self._memories[slot] = memory
