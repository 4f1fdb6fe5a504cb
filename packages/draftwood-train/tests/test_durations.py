"""Durations in words."""

import pytest

from draftwood_train.durations import duration


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.2, "0 s"),
        (99.4, "99 s"),
        (99.6, "2 minutes"),
        (5969, "99 minutes"),
        (5971, "1.7 hours"),
        (360_000, "100.0 hours"),
    ],
)
def test_seconds_are_told_in_words(seconds: float, told: str) -> None:
    assert duration(seconds) == told
