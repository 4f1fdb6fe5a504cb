"""Checks of pictures pass, their controls are caught, and the built-in model's pictures agree."""

import pytest

from draftwood.testing.windows import WRONG_WINDOWS
from draftwood_images.drawing_model import DrawingModel
from draftwood_images.folder import load_picture_model
from draftwood_images.proof import CHECKS, KINDS, LAW, LEAST, law_is_off, same_pictures
from draftwood_images.starts import STARTS

QUICK = [name for name in CHECKS if not (name.startswith(LAW) and name.endswith(", 3"))]


@pytest.mark.parametrize("name", QUICK)
def test_checks_pass(name: str) -> None:
    found = CHECKS[name]()
    assert found.passed, found.detail
    assert found.name == name


@pytest.mark.parametrize("wrong", WRONG_WINDOWS)
def test_wrong_windows_are_caught_from_the_upper_row_too(wrong: str) -> None:
    assert law_is_off("upper-row", 2, WRONG_WINDOWS[wrong]) > LEAST


@pytest.mark.proof
@pytest.mark.parametrize("start", STARTS)
def test_three_drafts_keep_the_law(start: str) -> None:
    assert law_is_off(start, 3) < 1e-5  # type: ignore[arg-type]


@pytest.mark.proof
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_forty_names_are_drawn_the_same(kind: tuple[float, bool], dtype: str) -> None:
    loaded = load_picture_model("emoji", dtype)  # type: ignore[arg-type]
    drawing, known = DrawingModel.of("emoji", loaded), loaded.settings.words
    for name in known[:: len(known) // 40][:40]:
        assert same_pictures(drawing, name, pictures=1, kinds=[kind]) == (1, 1)
