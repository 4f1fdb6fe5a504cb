"""Contact sheets: pictures side by side, as a PNG file and in a terminal."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from math import ceil, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from draftwood.storage.atomic import explain_write_errors, write_file
from draftwood_images.codec import Pixels

if TYPE_CHECKING:
    from rich.text import Text

GAP = 4
"""Pixels between two pictures of a sheet, before it is enlarged."""
LEAST_HEIGHT = 96
"""Pixels that a picture of a sheet has in height at least, by whole factors."""
HALF_BLOCK = "\N{UPPER HALF BLOCK}"


def sheet(
    pictures: Sequence[Pixels | None], columns: int | None = None
) -> UInt8[np.ndarray, "height width 3"]:
    """Lay pictures of one size out side by side on white.

    Args:
        pictures: in the order of rows; None leaves a place empty.
        columns: pictures in a row; None makes the sheet as square as it can be.

    Raises:
        ValueError: for no pictures, and for some of another size.
    """
    shapes = {each.shape for each in pictures if each is not None}
    if len(shapes) != 1:
        sizes = " and ".join(sorted("x".join(map(str, each)) for each in shapes))
        raise ValueError(f"a sheet has pictures of one size, got {sizes or 'none'}")
    across = columns or ceil(sqrt(len(pictures)))
    down = ceil(len(pictures) / across)
    ((height, width, *_),) = shapes
    page = np.full((down * (height + GAP) - GAP, across * (width + GAP) - GAP, 3), 255, np.uint8)
    for number, each in enumerate(pictures):
        top, left = (height + GAP) * (number // across), (width + GAP) * (number % across)
        if each is not None:
            page[top : top + height, left : left + width] = on_white(each)
    return enlarged(page, ceil(LEAST_HEIGHT / height))


def on_white(pixels: Pixels) -> UInt8[np.ndarray, "height width 3"]:
    """Colours of a picture, what it lets through in white."""
    if pixels.shape[2] == 3:
        return pixels
    opaque = pixels[:, :, 3:].astype(np.float32) / 255
    mixed = opaque * pixels[:, :, :3] + (1 - opaque) * 255
    return np.rint(mixed).astype(np.uint8)


def enlarged(pixels: Pixels, factor: int) -> Pixels:
    """Make each pixel a square of so many."""
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def png_of(pixels: Pixels) -> bytes:
    """The PNG file of a picture."""
    from PIL import Image

    memory = BytesIO()
    Image.fromarray(pixels).save(memory, "PNG")
    return memory.getvalue()


def write_png(path: Path, pixels: Pixels) -> None:
    """Write a picture, whole or not at all.

    Raises:
        OSError: where the disk refuses; the message says why.
    """
    content = png_of(pixels)
    write_file(path, lambda file: file.write_bytes(content), elsewhere)


def elsewhere(path: Path) -> AbstractContextManager[None]:
    """Explain errors of the disk, as ``write_file`` takes it."""
    return explain_write_errors(path, "name another file")


def in_half_blocks(pixels: Pixels) -> "Text":
    """A picture for a terminal, two pixels to a character."""
    from rich.style import Style
    from rich.text import Text

    shown = on_white(pixels)
    if len(shown) % 2:
        shown = np.concatenate([shown, np.full_like(shown[:1], 255)])
    text = Text(no_wrap=True)
    for upper, lower in zip(shown[::2], shown[1::2], strict=True):
        for above, below in zip(upper, lower, strict=True):
            style = Style(color=_rgb(above), bgcolor=_rgb(below))
            text.append(HALF_BLOCK, style)
        text.append("\n")
    return text


def _rgb(pixel: UInt8[np.ndarray, " 3"]) -> str:
    red, green, blue = pixel.tolist()
    return f"#{red:02x}{green:02x}{blue:02x}"
