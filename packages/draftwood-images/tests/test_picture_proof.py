"""Checks of pictures pass, their controls are caught, and the built-in model's pictures agree."""

import pytest

from draftwood_images.drawing_model import DrawingModel
from draftwood_images.folder import load_picture_model, shipped_models
from draftwood_images.proof import CHECKS, LAW, law_is_off, same_pictures
from draftwood_images.starts import STARTS

QUICK = [name for name in CHECKS if not (name.startswith(LAW) and name.endswith(", 3"))]


@pytest.mark.parametrize("name", QUICK)
def test_checks_pass(name: str) -> None:
    found = CHECKS[name]()
    assert found.passed, found.detail
    assert found.name == name


@pytest.mark.proof
@pytest.mark.parametrize("start", STARTS)
def test_three_drafts_keep_the_law(start: str) -> None:
    assert law_is_off(start, 3) < 1e-5  # type: ignore[arg-type]


@pytest.mark.proof
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_forty_names_are_drawn_the_same(dtype: str) -> None:
    if "emoji" not in shipped_models():
        pytest.skip("the built-in model is not there")
    drawing = DrawingModel.of("emoji", load_picture_model("emoji", dtype))  # type: ignore[arg-type]
    known = load_picture_model("emoji").settings.words
    for name in known[:: max(1, len(known) // 40)][:40]:
        made, same = same_pictures(drawing, name, pictures=1)
        assert made == same == 4
