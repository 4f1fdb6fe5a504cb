"""Small folders of pictures that were measured."""

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwood_bench.run.record_folder import RecordFolder
from draftwood_images.drawing import DrawnPicture, Easel
from draftwood_images.measuring.run import PLAIN, PROTOCOL, PictureRecord
from draftwood_images.sheet import png_of

ROWS, COLUMNS = 3, 4
SETTINGS = {
    **{"model": "small", "names": ["<cat>", "dog"], "seeds": 2, "distance": None},
    "places": {"rows": ROWS, "columns": COLUMNS, "stride": COLUMNS + 1},
}
"""Settings of pictures whose lines have ends."""
TOKENS = ROWS * (COLUMNS + 1)
GIVEN = {PLAIN: [1] * TOKENS, "sjd": [5, 1, 4, 5], "raced-jacobi": [7, 8]}
"""Tokens of each pass."""
FAILURES = {PLAIN: [], "sjd": [5, 9], "raced-jacobi": [6]}


def record(point: str, name: str, seed: int, seconds: float = 1.0, code: int = 0) -> PictureRecord:
    """A picture of one code by a setting that is named as its method."""
    drafted = 0 if point == PLAIN else 20
    pixels = np.full((ROWS, COLUMNS, 3), 20 * (seed + 1), np.uint8)
    return PictureRecord(
        *(point, point, name, seed, TOKENS, len(GIVEN[point]), drafted, drafted // 2, seconds),
        *([code] * (ROWS * COLUMNS), GIVEN[point], FAILURES[point]),
        b64encode(png_of(pixels)).decode(),
    )


def measured(folder: Path) -> Path:
    """A folder of two names with two pictures each: sjd takes half the time, and paints others."""
    found = RecordFolder(folder, PROTOCOL, PictureRecord)
    found.begin(SETTINGS)
    for number, name in enumerate(("<cat>", "dog")):
        for point, code in ((PLAIN, 0), ("sjd", 1), ("raced-jacobi", 0)):
            for seed in (2 * number, 2 * number + 1):
                found.append(record(point, name, seed, 1.0 if point == PLAIN else 0.5, code))
    return folder


def stop_drawing(patch: pytest.MonkeyPatch, drawn: int) -> None:
    """Let Ctrl-C come once so many pictures are drawn."""
    draw = Easel.draw

    def some(self: Easel, *given: Any) -> Iterator[DrawnPicture]:
        for number, picture in enumerate(draw(self, *given)):
            if number == drawn:
                raise KeyboardInterrupt
            yield picture

    patch.setattr(Easel, "draw", some)
