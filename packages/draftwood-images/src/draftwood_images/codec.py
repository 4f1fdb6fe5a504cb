"""Codecs: grids of codes to pixels and back, in NumPy alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from jaxtyping import Float, Int, UInt8

from draftwood.storage.safetensors import map_arrays, write_arrays

FILE = "codec.safetensors"
FACTOR = 2
"""Pixels across that a decoder paints at each place of its finer grid."""

Pixels = UInt8[np.ndarray, "height width channels"]
Codes = Int[np.ndarray, "rows columns"]
Grid = Float[np.ndarray, "rows columns channels"]


class Codec(Protocol):
    """Codec of pictures of one size."""

    @property
    def vectors(self) -> Float[np.ndarray, "codes size"]:
        """Vector of each code; near vectors look alike."""
        ...

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of the codes that it was trained for; None for all."""
        ...

    def decode(self, codes: Codes) -> Pixels:
        """Paint the picture of codes, in red, green and blue."""
        ...

    def encode(self, pixels: Pixels) -> Codes:
        """Find the codes of a picture."""
        ...


@dataclass(frozen=True)
class GreyCodec:
    """Grey levels as codes, one a pixel: code 0 is black, the last is white.

    Attributes:
        levels: number of codes.
    """

    levels: int

    @property
    def vectors(self) -> Float[np.ndarray, "codes size"]:
        return np.linspace(0, 1, self.levels, dtype=np.float32)[:, None]

    @property
    def grid(self) -> tuple[int, int] | None:
        return None

    def decode(self, codes: Codes) -> Pixels:
        grey = np.rint(codes * (255 / (self.levels - 1))).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)

    def encode(self, pixels: Pixels) -> Codes:
        return np.rint(pixels.mean(axis=2) * ((self.levels - 1) / 255)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class LearnedCodec:
    """Convolutional autoencoder with a codebook (VQ-VAE, van den Oord et al. 2017, 1711.00937).

    The encoder reads squares of pixels and works on the grid of codes; the decoder ends on a grid
    twice as fine. Differs from the paper in that no layer strides: squares are reshaped.

    Attributes:
        arrays: weights by name; a convolution's are [side side inputs outputs].
        rows, columns: of its grid of codes.
    """

    arrays: Mapping[str, np.ndarray]
    rows: int
    columns: int

    @cached_property
    def _weights(self) -> dict[str, Float[np.ndarray, "..."]]:
        return {name: np.asarray(each, np.float32) for name, each in self.arrays.items()}

    @property
    def vectors(self) -> Float[np.ndarray, "codes size"]:
        return self._weights["vectors"]

    @property
    def grid(self) -> tuple[int, int] | None:
        return self.rows, self.columns

    def decode(self, codes: Codes) -> Pixels:
        codes = np.asarray(codes)
        if codes.shape != self.grid or codes.min() < 0 or codes.max() >= len(self.vectors):
            raise ValueError(
                f"the codec paints {self.rows} x {self.columns} codes below {len(self.vectors)},"
                f" got {' x '.join(map(str, codes.shape))} up to {codes.max()}"
            )
        x = self._residuals("decoder.coarse", self._layer("decoder.first", self.vectors[codes]))
        x = self._residuals("decoder.fine", _spread(self._layer("decoder.finer", x), FACTOR))
        x = self._layer("decoder.last", np.maximum(x, 0))
        side = int(np.sqrt(x.shape[2] // 3))
        return np.rint(np.clip(_spread(x, side) * 0.5 + 0.5, 0, 1) * 255).astype(np.uint8)

    def encode(self, pixels: Pixels) -> Codes:
        patch, channels = pixels.shape[0] // self.rows, self._weights["encoder.first.weight"].shape
        if pixels.shape[:2] != (patch * self.rows, patch * self.columns) or channels[2] != (
            3 * patch * patch
        ):
            raise ValueError(
                f"the codec reads {self.rows} x {self.columns} squares of"
                f" {int(np.sqrt(channels[2] // 3))} pixels, got {pixels.shape[0]} x"
                f" {pixels.shape[1]} pixels; scale the picture first"
            )
        x = _gathered(pixels[:, :, :3].astype(np.float32) / 127.5 - 1, patch)
        x = self._residuals("encoder.coarse", self._layer("encoder.first", x))
        x = self._layer("encoder.last", np.maximum(x, 0))
        far = (self.vectors**2).sum(axis=1) - 2 * x @ self.vectors.T
        return far.argmin(axis=2)

    def _layer(self, name: str, x: Grid) -> Grid:
        return _convolved(x, self._weights[f"{name}.weight"]) + self._weights[f"{name}.bias"]

    def _residuals(self, name: str, x: Grid) -> Grid:
        place = 0
        while f"{name}.{place}.wide.weight" in self._weights:
            inner = self._layer(f"{name}.{place}.wide", np.maximum(x, 0))
            x = x + self._layer(f"{name}.{place}.narrow", np.maximum(inner, 0))
            place += 1
        return x


def write_codec(codec: GreyCodec | LearnedCodec, folder: Path) -> None:
    """Write a codec into a folder that is being made; weights in float16."""
    if isinstance(codec, GreyCodec):
        levels = np.array([codec.levels], np.int32)
        return write_arrays(folder / FILE, {"levels": levels})
    halves = {name: np.asarray(each, np.float16) for name, each in codec.arrays.items()}
    grid = np.array([codec.rows, codec.columns], np.int32)
    return write_arrays(folder / FILE, {"grid": grid, **halves})


def read_codec(folder: Path) -> GreyCodec | LearnedCodec:
    """Read the codec of a folder.

    Raises:
        ValueError: where there is no whole one.
    """
    try:
        arrays = dict(map_arrays(folder / FILE))
        if "levels" in arrays:
            return GreyCodec(int(arrays["levels"][0]))
        rows, columns = map(int, arrays.pop("grid"))
        needed = ("vectors", "encoder.first.weight", "decoder.last.weight")
        if missing := [name for name in needed if name not in arrays]:
            raise ValueError(f"no {missing[0]}")
        return LearnedCodec(arrays, rows, columns)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise ValueError(
            f"{folder} holds no whole codec ({FILE}: {error}); make the model again with"
            " 'draftwood train images'"
        ) from None


def _convolved(x: Grid, weight: Float[np.ndarray, "side side inputs outputs"]) -> Grid:
    """Convolve a grid at each of its places; beyond its edges is zero."""
    rows, columns, _ = x.shape
    side = weight.shape[0]
    if side == 1:
        return x @ weight[0, 0]
    edge = side // 2
    padded = np.pad(x, ((edge, edge), (edge, edge), (0, 0)))
    near = [padded[i : i + rows, j : j + columns] for i in range(side) for j in range(side)]
    return np.concatenate(near, axis=2) @ weight.reshape(-1, weight.shape[3])


def _spread(x: Grid, factor: int) -> Grid:
    """Lay the channels of each place out as a square of places."""
    rows, columns, channels = x.shape
    squares = x.reshape(rows, columns, factor, factor, channels // factor**2)
    return squares.transpose(0, 2, 1, 3, 4).reshape(rows * factor, columns * factor, -1)


def _gathered(x: Grid, factor: int) -> Grid:
    """Gather squares of places into the channels of one."""
    rows, columns, channels = x.shape[0] // factor, x.shape[1] // factor, x.shape[2]
    squares = x.reshape(rows, factor, columns, factor, channels).transpose(0, 2, 1, 3, 4)
    return squares.reshape(rows, columns, factor**2 * channels)
