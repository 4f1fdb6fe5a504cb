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
HEIGHT = 96
"""Pixels that a picture of a sheet has in height on a page."""
GIVEN = (
    "Each square is a code of the picture to its left, coloured by how many tokens the pass gave"
    " that wrote it."
)
"""Told of the figures of ``figures_of_passes``."""
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


def _shade(tokens: Int[np.ndarray, "rows columns"]) -> UInt8[np.ndarray, "rows columns 3"]:
    """Colours of so many tokens of a pass."""
    return _colours((tokens - 1) / (MOST - 1))


def _colours(shares: Float[np.ndarray, "rows columns"]) -> UInt8[np.ndarray, "rows columns 3"]:
    part = np.clip(shares, 0, 1)[..., None]
    return np.rint(PALE + part * (DARK - PALE)).astype(np.uint8)


def scale() -> str:
    """Legend of the colours of passes, as HTML."""
    values = np.arange(1, MOST + 1)
    colours = _shade(values[None])[0].tolist()
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


def figures_of_passes(
    png: bytes, name: str, seed: int, passes: int, given: Sequence[int], places: Places, alt: str
) -> str:
    """HTML of a picture and a map of the tokens that its passes gave, side by side.

    Args:
        given: tokens that each pass gave.
        alt: of the map.
    """
    by_place, height = given_by_place(given, places), SIDE * places.rows
    told = f"{passes} passes, at most {by_place.max()} tokens"
    picture, map_ = figure(png, name, f"seed {seed}", height), png_of(_shade(by_place))
    return picture + figure(map_, alt, told, height)


def figure_of_failures(label: str, failures: Sequence[Sequence[int]], places: Places) -> str:
    """HTML of the map of places where drafts of a method fail.

    Args:
        failures: places where one was rejected, of each picture.
    """
    shares = failing_by_place(failures, places)
    told, alt = f"{label}: {shares.mean():.0%} of places", f"where drafts of {label} fail"
    return figure(png_of(_colours(shares)), alt, told, SIDE * places.rows)
