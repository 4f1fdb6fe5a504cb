"""The blocks of a cache as Python sees them; see cache.h."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.native import structures

PLACES = 32
"""Tokens of a block; as in cache.h."""

MOST_BYTE, KEY_ZERO = 127.0, 128  # as in attention_bytes.h


class BlockViews:
    """Reads and writes the numbers of blocks, each given as a row of bytes."""

    def __init__(self, shape: structures.CCacheShape, dtype: torch.dtype) -> None:
        self.layers, self.heads = shape.layers, shape.heads
        self.row_bytes, self.has_scales = shape.row_bytes, bool(shape.has_scales)
        self.dtype = dtype

    def read(self, rows: Sequence[Tensor], start: int, end: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer from place to place, and their scales where they have."""
        parts = [torch.cat([self.numbers(row) for row in rows], 1)[:, start:end]]
        if self.has_scales:
            parts.append(torch.cat([self.scales(row) for row in rows], 1)[:, start:end])
        return [(part[i], part[i + 1]) for part in parts for i in range(0, 2 * self.layers, 2)]

    def layer(self, rows: Sequence[Tensor], index: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, each [heads length dim], of blocks without scales."""
        both = torch.cat([self.numbers(row)[2 * index : 2 * index + 2] for row in rows], dim=1)
        keys, values = both[:, :length].transpose(1, 2)
        return keys, values

    def write(
        self,
        rows: Sequence[Tensor],
        tensor: int,
        start: int,
        numbers: Float[Tensor, "places heads dim"],
    ) -> None:
        """Store numbers of a layer's keys, where ``tensor`` is even, or values."""
        scales = None
        if self.has_scales:
            numbers, scales = self._rounded(numbers, 0 if tensor % 2 else KEY_ZERO)
        for place in range(start, start + len(numbers)):
            row, within = rows[place // PLACES], place % PLACES
            self.numbers(row)[tensor, within] = numbers[place - start]
            if scales is not None:
                self.scales(row)[tensor, within] = scales[place - start]

    def numbers(self, row: Tensor) -> Tensor:
        """View a block's numbers: [2 * layers, 32, heads, dim]."""
        size = 2 * self.layers * PLACES * self.heads * self.row_bytes
        return row[:size].view(self.dtype).view(2 * self.layers, PLACES, self.heads, -1)

    def scales(self, row: Tensor) -> Tensor:
        """View a block's scales: [2 * layers, 32, heads]."""
        size = 2 * self.layers * PLACES * self.heads * self.row_bytes
        scales = row[size:].view(torch.float32).view(2 * self.layers, self.heads, PLACES)
        return scales.transpose(1, 2)

    def _rounded(self, numbers: Tensor, zero: int) -> tuple[Tensor, Tensor]:
        """As encode_row of attention_bytes.h."""
        padded = torch.nn.functional.pad(numbers.float(), (0, self.row_bytes - numbers.shape[-1]))
        largest = padded.abs().amax(-1)
        inverse = torch.where(largest > 1e-30, MOST_BYTE / largest, 0.0)
        rounded = (padded * inverse[..., None]).round().to(torch.int16) + zero
        return (rounded & 255).to(torch.uint8), largest / MOST_BYTE
