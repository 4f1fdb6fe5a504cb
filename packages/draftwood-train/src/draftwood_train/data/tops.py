"""Compress the target's likeliest tokens of a text to bytes, the same bytes each time."""

import zlib
from dataclasses import dataclass

import numpy as np
import torch

from draftwood_train.data.texts import TopTokens

COUNT = 16
"""Tokens at each place."""
STEPS = 2048
"""Steps of a log probability in one nat; 16 bits reach 32 nats."""


@dataclass(frozen=True)
class TopForm:
    """Form of packed places: tokens at each, and bytes of an id.

    Ids, log probabilities and normalisers follow each other, rank by rank and byte by byte, since
    neighbours that are alike compress better.
    """

    count: int
    id_bytes: int

    @classmethod
    def of(cls, count: int, vocab_size: int) -> "TopForm":
        return cls(count, 2 if vocab_size <= 1 << 16 else 4)

    @property
    def _ids(self) -> np.dtype:
        return np.dtype(f"<u{self.id_bytes}")

    def packed(self, top: TopTokens) -> bytes:
        steps = (-top.logs.double().numpy() * STEPS).round().clip(0, (1 << 16) - 1)
        parts = (
            top.tokens.numpy().T.astype(self._ids),
            steps.T.astype("<u2"),
            top.log_normalizer.numpy().astype("<f4")[None],
        )
        return zlib.compress(b"".join(_by_bytes(part) for part in parts), 6)

    def unpacked(self, packed: bytes, places: int) -> TopTokens:
        """Read the places of a text.

        Raises:
            ValueError: where the bytes are damaged.
        """
        sizes = [self.count * self.id_bytes * places, self.count * 2 * places, 4 * places]
        try:
            whole = zlib.decompress(packed)
        except zlib.error as error:
            raise ValueError(f"the likeliest tokens cannot be unpacked ({error})") from None
        if len(whole) != sum(sizes):
            raise ValueError("there are more or fewer likeliest tokens than places")
        ids, steps, normalizers = (
            _from_bytes(whole[end - size : end], kind, places)
            for kind, size, end in zip(
                (self._ids, np.dtype("<u2"), np.dtype("<f4")), sizes, np.cumsum(sizes), strict=True
            )
        )
        return TopTokens(
            torch.from_numpy(ids.T.astype(np.int64)),
            torch.from_numpy(-steps.T.astype(np.float32) / STEPS),
            torch.from_numpy(normalizers[0].astype(np.float32)),
        )


def _by_bytes(rows: np.ndarray) -> bytes:
    """First bytes of all entries, then second ones, and so on."""
    flat = np.ascontiguousarray(rows).view(np.uint8).reshape(-1, rows.dtype.itemsize)
    return flat.T.tobytes()


def _from_bytes(packed: bytes, kind: np.dtype, places: int) -> np.ndarray:
    size = kind.itemsize
    flat = np.frombuffer(packed, np.uint8).reshape(size, -1).T
    return np.ascontiguousarray(flat).view(kind).reshape(-1, places)
