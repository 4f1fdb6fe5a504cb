"""Places of a picture's codes, what new ones start from, and names in words."""

from collections.abc import Sequence

import numpy as np
import pytest

from draftwood_images.layout import PictureLayout, Raster
from draftwood_images.small import SETTINGS
from draftwood_images.starts import STARTS, PictureStart, Start
from draftwood_images.words import prompt_of, words_in

PLAIN = PictureLayout(2, 3, 8, begin=7, tokens=(4, 5, 6))
LINES = PictureLayout(2, 3, 8, begin=7, tokens=(4, 5, 6), line_end=3)
BEFORE = [1, 7, 4, 5, 6, 5]


@pytest.mark.parametrize(
    ("before", "place", "left", "upper"),
    [
        (BEFORE[:2], 0, None, None),
        (BEFORE[:3], 1, 4, None),
        (BEFORE[:5], 3, None, 4),
        (BEFORE, 4, 5, 5),
        ([7, *BEFORE], 4, 5, 5),
    ],
)
def test_neighbours(before: list[int], place: int, left: int | None, upper: int | None) -> None:
    assert PLAIN.place_after(before) == place
    assert (PLAIN.left(before), PLAIN.upper(before)) == (left, upper)


def test_neighbours_beyond_the_ends_of_lines() -> None:
    text = [7, 4, 5, 6, 3, 5]
    assert LINES.length == 8
    assert [LINES.is_line_end(place) for place in range(8)] == [False, False, False, True] * 2
    assert (LINES.left(text), LINES.upper(text)) == (5, 5)
    assert LINES.left(text[:5]) is None
    assert LINES.upper(text[:5]) == 4
    assert LINES.grid([4, 5, 6, 3, 5, 5, 4, 3]).tolist() == [[0, 1, 2], [1, 1, 0]]
    assert PLAIN.grid([4, 5, 6, 5, 5, 4]).tolist() == [[0, 1, 2], [1, 1, 0]]


@pytest.mark.parametrize(
    "tokens", [[4, 5, 6], [4, 5, 6, 3, 5, 5, 4, 4, 4], [1, 5, 6, 3, 5, 5, 4, 3]]
)
def test_other_tokens_are_no_picture(tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="a picture has 8 tokens"):
        LINES.grid(tokens)


def test_no_picture_is_open() -> None:
    with pytest.raises(ValueError, match="no picture is open"):
        PLAIN.place_after([1, 2])


def test_only_codes_are_drawn_and_lines_end_where_they_must() -> None:
    assert {token for token, bias in PLAIN.bias.items() if bias == -np.inf} == {0, 1, 2, 3, 7}
    state = Raster(LINES).start()
    assert Raster(LINES).vocab_size == 8
    assert not Raster(LINES).end_tokens
    for place, token in enumerate([4, 5, 6, 3, 5, 5, 4, 3]):
        assert state.forced() == ([3] if place % 4 == 3 else [])
        assert state.after(7) is None
        assert state.after(99) is None
        assert not state.may_end
        following = state.after(token)
        assert following is not None
        state = following
    assert state.may_end
    assert not state.must_end


ROWS = [np.eye(8, dtype=np.float32)[each] for each in (0, 4, 5, 6)]
"""Certain of these tokens, the newest last."""


@pytest.mark.parametrize(
    ("kind", "before", "token"),
    [
        ("random", BEFORE, None),
        ("left", BEFORE, 5),
        ("left", BEFORE[:5], None),
        ("upper", BEFORE, 5),
        ("upper", BEFORE[:3], 4),
        ("upper", BEFORE[:2], None),
        ("row", BEFORE, 6),
        ("row", BEFORE[:5], None),
        ("upper-row", BEFORE, 4),
        ("upper-row", BEFORE[:5], 4),
        ("upper-row", BEFORE[:3], 6),
        ("upper-row", BEFORE[:2], None),
    ],
)
def test_starts(kind: Start, before: Sequence[int], token: int | None) -> None:
    row = PictureStart(PLAIN, kind).row(before, ROWS, 8)
    certain = np.eye(8, dtype=np.float32)
    codes = np.array([0, 0, 0, 0, 1, 1, 1, 0], np.float32) / np.float32(3)
    np.testing.assert_array_equal(row, codes if token is None else certain[token])
    assert row.dtype == np.float32


def test_starts_know_the_ends_of_lines() -> None:
    for kind in STARTS:
        row = PictureStart(LINES, kind).row([7, 4, 5, 6], ROWS, 8)
        assert row.argmax() == 3
        assert row.sum() == 1.0
    below = PictureStart(LINES, "upper-row").row([7, 4, 5, 6, 3], ROWS, 8)
    assert below.argmax() == 0  # the fourth to last, beyond the line's end
    with pytest.raises(ValueError, match="start must be one of"):
        PictureStart(LINES, "below")  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "count"), [("row", 0), ("upper-row", 2)])
def test_rows_that_are_not_known_are_random(kind: Start, count: int) -> None:
    row = PictureStart(PLAIN, kind).row(BEFORE, ROWS[:count], 8)
    np.testing.assert_array_equal(row, PictureStart(PLAIN).row(BEFORE, ROWS, 8))


def test_starts_reach_as_far_as_the_row_that_they_take() -> None:
    reaches = {kind: PictureStart(LINES, kind).reach for kind in STARTS}
    assert reaches == {"random": 0, "left": 0, "upper": 0, "row": 1, "upper-row": 4}


def test_names_in_words() -> None:
    assert words_in("  Red, apple! (round)") == ["red", "apple", "round"]
    assert prompt_of(SETTINGS, "Red-green PEAR") == [0, 1, 3, SETTINGS.begin]
    assert prompt_of(SETTINGS, "  ") == [SETTINGS.unconditional, SETTINGS.begin]


@pytest.mark.parametrize(
    ("name", "told"), [("red aple", "did you mean apple"), ("zzzzz", "it knows 5 others")]
)
def test_unknown_words_are_named_with_the_nearest(name: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        prompt_of(SETTINGS, name)
