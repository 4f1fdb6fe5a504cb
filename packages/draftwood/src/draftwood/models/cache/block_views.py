"""The blocks of a cache as Python sees them; see cache.h."""

from collections.abc import Sequence

import numpy as np

from draftwood.arrays import Float, from_bfloat16, to_bfloat16
from draftwood.models.cache.places import PLACES
from draftwood.native import structures
from draftwood.native.formats import CacheNumbers

MOST_BYTE, KEY_ZERO = 127.0, 128  # as in attention_bytes.h
_STORED = {"float32": np.float32, "bfloat16": np.uint16, "int8": np.uint8}


class BlockViews:
    """Reads and writes the numbers of blocks, each given as a row of bytes.

    Args:
        numbers: their type in a block; those of ``int8`` have scales.
    """

    def __init__(self, shape: structures.CCacheShape, numbers: CacheNumbers) -> None:
        self.layers, self.heads = shape.layers, shape.heads
        self.row_bytes, self.kind = shape.row_bytes, numbers

    def read(
        self, rows: Sequence[np.ndarray], start: int, end: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Keys and values of each layer from place to place, and their scales where they have.

        Floats come in float32.
        """
        numbers = np.concatenate([self.numbers(row) for row in rows], 1)[:, start:end]
        parts = [from_bfloat16(numbers) if self.kind == "bfloat16" else numbers]
        if self.kind == "int8":
            parts.append(np.concatenate([self.scales(row) for row in rows], 1)[:, start:end])
        return [(part[i], part[i + 1]) for part in parts for i in range(0, 2 * self.layers, 2)]

    def layer(
        self, rows: Sequence[np.ndarray], index: int, length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of a layer, each [heads length dim] in float32, of blocks of floats."""
        both = np.concatenate([self.numbers(row)[2 * index : 2 * index + 2] for row in rows], 1)
        floats = from_bfloat16(both) if self.kind == "bfloat16" else both
        keys, values = floats[:, :length].swapaxes(1, 2)
        return keys, values

    def write(
        self,
        rows: Sequence[np.ndarray],
        tensor: int,
        start: int,
        numbers: Float[np.ndarray, "places heads dim"],
    ) -> None:
        """Store numbers of a layer's keys, where ``tensor`` is even, or values."""
        stored, scales = numbers, None
        if self.kind == "int8":
            stored, scales = self._rounded(numbers, 0 if tensor % 2 else KEY_ZERO)
        elif self.kind == "bfloat16":
            stored = to_bfloat16(numbers)
        for place in range(start, start + len(stored)):
            row, within = rows[place // PLACES], place % PLACES
            self.numbers(row)[tensor, within] = stored[place - start]
            if scales is not None:
                self.scales(row)[tensor, within] = scales[place - start]

    def numbers(self, row: np.ndarray) -> np.ndarray:
        """View a block's numbers: [2 * layers, 32, heads, dim]."""
        size = 2 * self.layers * PLACES * self.heads * self.row_bytes
        return row[:size].view(_STORED[self.kind]).reshape(2 * self.layers, PLACES, self.heads, -1)

    def scales(self, row: np.ndarray) -> np.ndarray:
        """View a block's scales: [2 * layers, 32, heads]."""
        size = 2 * self.layers * PLACES * self.heads * self.row_bytes
        scales = row[size:].view(np.float32).reshape(2 * self.layers, self.heads, PLACES)
        return scales.transpose(0, 2, 1)

    def _rounded(
        self, numbers: Float[np.ndarray, "places heads dim"], zero: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """As encode_row of attention_bytes.h."""
        missing = self.row_bytes - numbers.shape[-1]
        padded = np.pad(numbers.astype(np.float32), ((0, 0), (0, 0), (0, missing)))
        largest = np.abs(padded).max(-1)
        inverse = np.float32(MOST_BYTE) / np.where(largest > 1e-30, largest, np.float32(np.inf))
        rounded = np.rint(padded * inverse[..., None]).astype(np.int16) + zero
        return (rounded & 255).astype(np.uint8), largest / np.float32(MOST_BYTE)
