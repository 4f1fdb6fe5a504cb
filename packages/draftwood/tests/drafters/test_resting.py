"""Drafting rests where it does not pay, longer each time, and goes on where it does."""

import pytest

from draftwood.drafters.resting import LEAST_TRIAL, LONGEST, SHORTEST, Rest


def trial(rest: Rest, gain: float, passes: int = 1) -> int:
    """Passes until a rest begins, at most 200."""
    for count in range(passes, 200, passes):
        rest.count(gain * passes, passes)
        if rest.left:
            return count
    return 200


def rest_through(rest: Rest) -> int:
    steps = 0
    while rest.goes_on():
        steps += 1
    return steps


def test_rests_double_until_drafting_pays_again() -> None:
    rest, rested = Rest(1.0), []
    for _ in range(6):
        assert trial(rest, 0.5) == LEAST_TRIAL
        rested.append(rest_through(rest))
    assert rested == [min(SHORTEST * 2**n, LONGEST) for n in range(6)]
    assert trial(rest, 1.1) == 200
    rest.count(-100.0)
    assert rest_through(rest) == SHORTEST


@pytest.mark.parametrize("gain", [1.0, 1.5])
def test_what_breaks_even_never_rests(gain: float) -> None:
    assert trial(Rest(1.0), gain) == 200


@pytest.mark.parametrize("passes", [1, 8, 16])
def test_a_batch_learns_from_all_its_rows(passes: int) -> None:
    """Some thirty passes without a kept token show that less than one in twenty is."""
    alone, together = trial(Rest(0.05), 0.0), trial(Rest(0.05), 0.0, passes)
    assert 25 < alone < 32
    assert alone <= together < alone + passes


def test_one_good_pass_in_ten_goes_on() -> None:
    rest = Rest(0.05)
    for number in range(300):
        rest.count(1.0 if number % 10 == 0 else 0.0)
        assert not rest.left


def test_steps_of_a_row_in_which_a_rest_begins_do_not_begin_another() -> None:
    rest = Rest(1.0)
    for _ in range(16):  # of which the first eight begin it
        rest.count(0.5)
    assert rest.left == 1 + SHORTEST
    while rest.goes_on():
        pass
    for _ in range(8):
        rest.count(0.5)
    assert rest.left == 1 + 2 * SHORTEST
