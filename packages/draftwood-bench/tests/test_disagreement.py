"""Disagreement within sentences, counted on planted texts."""

import numpy as np
import pytest

from benchmarks.disagreement import PARTS, TextRecord, places_in_sentences, shares, side, told
from benchmarks.self_speculation.paired_counts import figure


def records(chance_of_place) -> list[TextRecord]:
    """Texts of sentences of twenty tokens, the follower being another by chance."""
    rng = np.random.default_rng(3)
    places = [*range(20)] * 10
    drawn = [rng.random(len(places)) < chance_of_place(np.array(places)) for _ in range(30)]
    return [
        TextRecord(str(number), places, each.astype(int).tolist(), None)
        for number, each in enumerate(drawn)
    ]


def test_places_begin_anew_behind_a_sentence():
    pieces = ["It", " is", " 3", ".", "5", " m", ".", " Wide", " and", " blue", "!\n", "Two"]
    assert places_in_sentences(pieces) == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 0]


def test_planted_disagreement_at_sentences_starts_is_found():
    made = records(lambda places: np.where(places < 3, 0.4, 0.1))
    early = shares(made)["first three"]
    assert early.low < 0.4 < early.high
    assert told(made).endswith(": holds")


def test_even_disagreement_is_not_called_one_of_starts():
    assert told(records(lambda places: np.full(len(places), 0.2))).endswith("does not hold")


@pytest.mark.parametrize("part", ["first three", "fourth to tenth"])
def test_a_share_counts_its_own_places_alone(part):
    first, end = PARTS[part]
    made = records(lambda places: ((places >= first) & (places < end)).astype(float))
    assert figure(side(made, part)).value == 1.0
    assert figure(side(made, "past the tenth")).value == 0.0
