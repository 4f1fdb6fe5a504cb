"""The blocks of a cache as Python sees them; see cache.h."""

from collections.abc import Callable, Sequence

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
        self.layers, self.kind = shape.layers, numbers
        self._each = shape.each[: shape.layers + 1]

    def read(
        self, rows: Sequence[np.ndarray], start: int, end: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Keys and values of each layer from place to place, and their scales where they have.

        Floats come in float32.
        """
        views = [self.numbers] + [self.scales] * (self.kind == "int8")
        parts = [self._joined(rows, view, index) for view in views for index in range(self.layers)]
        return [(keys[start:end], values[start:end]) for keys, values in parts]

    def _joined(
        self, rows: Sequence[np.ndarray], view: Callable[[np.ndarray, int], np.ndarray], index: int
    ) -> np.ndarray:
        """Keys and values of a layer, or their scales, of all of these blocks."""
        both = np.concatenate([view(row, index) for row in rows], 1)
        return from_bfloat16(both) if both.dtype == np.uint16 else both

    def layer(
        self, rows: Sequence[np.ndarray], index: int, length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of a layer, each [heads length dim] in float32, of blocks of floats."""
        keys, values = self._joined(rows, self.numbers, index)[:, :length].swapaxes(1, 2)
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
            missing = self._each[tensor // 2].row_bytes - numbers.shape[-1]
            stored, scales = _rounded(numbers, missing, 0 if tensor % 2 else KEY_ZERO)
        elif self.kind == "bfloat16":
            stored = to_bfloat16(numbers)
        for place in range(start, start + len(stored)):
            row, within = rows[place // PLACES], place % PLACES
            self.numbers(row, tensor // 2)[tensor % 2, within] = stored[place - start]
            if scales is not None:
                self.scales(row, tensor // 2)[tensor % 2, within] = scales[place - start]

    def numbers(self, row: np.ndarray, index: int) -> np.ndarray:
        """View a block's keys and values of a layer: [2, 32, heads, dim]."""
        first, last = (PLACES * self._each[i].bytes_before for i in (index, index + 1))
        numbers = row[first:last].view(_STORED[self.kind])
        return numbers.reshape(2, PLACES, self._each[index].heads, -1)

    def scales(self, row: np.ndarray, index: int) -> np.ndarray:
        """View a block's scales of a layer: [2, 32, heads]."""
        scales = row[PLACES * self._each[-1].bytes_before :].view(np.float32)
        first, last = (PLACES * self._each[i].heads_before for i in (index, index + 1))
        return scales[first:last].reshape(2, -1, PLACES).transpose(0, 2, 1)


def _rounded(
    numbers: Float[np.ndarray, "places heads dim"], missing: int, zero: int
) -> tuple[np.ndarray, np.ndarray]:
    """Round as encode_row of attention_bytes.h does, with so many zeros behind."""
    padded = np.pad(numbers.astype(np.float32), ((0, 0), (0, 0), (0, missing)))
    largest = np.abs(padded).max(-1)
    inverse = np.float32(MOST_BYTE) / np.where(largest > 1e-30, largest, np.float32(np.inf))
    rounded = np.rint(padded * inverse[..., None]).astype(np.int16) + zero
    return (rounded & 255).astype(np.uint8), largest / np.float32(MOST_BYTE)
