"""Weights of a head's file, decoded once they are asked for.

The library packs blocks as they are stored: floats of all of them, made and rounded again, took a
third of the time until a model of a billion weights answered.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from draftwood.heads.shapes import BLOCK_BYTES, BlockFormat, decoded, inputs_of
from draftwood.native.matrix import Blocks


class StoredWeights(Mapping[str, np.ndarray]):
    """Weights of a file by their names, in float32, each in memory of its own that stays.

    Args:
        arrays: as the file has them.
        format: of the matrices among them that are bytes; None for floats alone.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], format: BlockFormat | None) -> None:
        self._format: BlockFormat | None = format
        self._arrays: dict[str, Blocks | np.ndarray] = {}
        for name, array in arrays.items():
            if array.dtype == np.uint8 and format is not None:
                blocks = Blocks(format, np.array(array), inputs_of(array.shape[1], format))
                self._arrays[name] = blocks
            else:
                self._arrays[name] = decoded(array)

    def __getitem__(self, name: str) -> np.ndarray:
        found = self._arrays[name]
        if isinstance(found, Blocks):
            found = self._arrays[name] = decoded(found)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def as_stored(self) -> Mapping[str, Blocks | np.ndarray]:
        """Weights by their names; blocks for those that nobody asked for in float32."""
        return dict(self._arrays)


def as_stored(weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """Weights by their names, as blocks where a file has them and nobody changed them."""
    return weights.as_stored() if isinstance(weights, StoredWeights) else weights


def is_finite(weight: Blocks | np.ndarray) -> bool:
    """True for a weight without NaN and infinity; of blocks their scales are read alone."""
    if not isinstance(weight, Blocks):
        return bool(np.isfinite(weight).all())
    size = BLOCK_BYTES[weight.format]
    scales = 4 if weight.format == "Q4_1" else 2
    heads = weight.stored.reshape(-1, size)[:, :scales]
    return bool(np.isfinite(np.ascontiguousarray(heads).view(np.float16)).all())
