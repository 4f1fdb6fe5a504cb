"""Maps of a picture's places, and figures of them, as pages show them."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape

import numpy as np
from jaxtyping import Float, Int, UInt8

from draftwood_images.layout import Places
from draftwood_images.sheet import png_of

MOST = 8
"""Tokens of a pass from which on the colour is the darkest."""
SIDE = 12
"""Pixels of a code's square in a map."""
PALE, DARK = np.array([240, 244, 250]), np.array([11, 60, 130])


def given_by_place(given: Sequence[int], places: Places) -> Int[np.ndarray, "rows columns"]:
    """Tokens that the pass gave which wrote each code.

    Args:
        given: tokens that each pass gave.
    """
    return places.cut(np.array([count for count in given for _ in range(count)]))


def failing_by_place(
    failures: Sequence[Sequence[int]], places: Places
) -> Float[np.ndarray, "rows columns"]:
    """Share of pictures in which a draft token was rejected at each code's place.

    Args:
        failures: places where one was, of each picture.
    """
    counts = np.zeros(places.rows * places.stride)
    for one in failures:
        counts[list(one)] += 1
    return places.cut(counts / max(1, len(failures)))


def given_map(given: Int[np.ndarray, "rows columns"]) -> bytes:
    """PNG of tokens that passes gave, a pixel for each code."""
    return png_of(_colours((given - 1) / (MOST - 1)))


def share_map(shares: Float[np.ndarray, "rows columns"]) -> bytes:
    """PNG of shares from 0 to 1, likewise."""
    return png_of(_colours(shares))


def _colours(shares: Float[np.ndarray, "rows columns"]) -> UInt8[np.ndarray, "rows columns 3"]:
    part = np.clip(shares, 0, 1)[..., None]
    return np.rint(PALE + part * (DARK - PALE)).astype(np.uint8)


def scale() -> str:
    """Legend of the colours of passes, as HTML."""
    values = np.arange(1, MOST + 1)
    colours = _colours((values[None] - 1) / (MOST - 1))[0].tolist()
    marks = "".join(
        f'<i style="background:rgb({red},{green},{blue})"></i>{value}'
        for value, (red, green, blue) in zip(values, colours, strict=True)
    )
    return f'<span class="scale">{marks} and more</span>'


def figure(png: bytes, alt: str, told: str, height: int) -> str:
    """HTML of an image and what is told of it.

    Args:
        height: in pixels of the page.
    """
    content = b64encode(png).decode()
    image = f'<img alt="{escape(alt)}" height="{height}" src="data:image/png;base64,{content}">'
    return f"<figure>{image}<figcaption>{escape(told)}</figcaption></figure>"
