"""Searches through rows give what plain array operations give."""

import numpy as np
import pytest

from draftwood.native import rows_numpy
from draftwood.native.rows import (
    exponential_noise,
    gumbel_argmax,
    in_cpp,
    overlap,
    softmax,
    topk,
    topk_probs,
)
from draftwood.rng import Rng

pytestmark = pytest.mark.skipif(
    not in_cpp(np.zeros(1, np.float32)), reason="there is no C++ compiler"
)


def some(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def law(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    return rows_numpy.softmax(logits, temperature)


@pytest.mark.parametrize(("vocab", "count"), [(5, 5), (16, 1), (50, 8), (1000, 8), (49_152, 20)])
def test_the_largest_come_first_and_of_equal_ones_the_first(vocab: int, count: int) -> None:
    rows = (some(11, vocab) * 20).round() / np.float32(20)  # many ties
    expected = (-rows).argsort(-1, kind="stable")[:, :count]
    assert np.array_equal(topk(rows, count), expected)
    assert np.array_equal(rows_numpy.topk(rows, count), expected)
    strided = np.concatenate([rows, -rows], axis=1)[:, :vocab]
    assert np.array_equal(topk(strided, count), expected)


def test_of_no_places_nothing_is_written() -> None:
    assert topk(some(3, 40), 0).shape == rows_numpy.topk(some(3, 40), 0).shape == (3, 0)


def test_more_places_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match="a row of 40 entries has no 41 largest ones"):
        topk(some(3, 40), 41)


@pytest.mark.parametrize("vocab", [17, 37, 47])
def test_equal_logits_have_equal_probabilities_wherever_they_stand(vocab: int) -> None:
    for value in np.linspace(-20, 3, 200, dtype=np.float32):
        logits = some(1, vocab)
        logits[0, [3, vocab - 1]] = value
        first, last = softmax(logits, 0.7)[0, [3, vocab - 1]]
        assert first == last


def test_a_maximum_anywhere_is_found() -> None:
    for place in range(0, 300, 7):
        row = np.zeros((1, 300), np.float32)
        row[0, place] = 1.0
        assert topk(row, 1).item() == place


@pytest.mark.parametrize("vocab", [1, 7, 256, 1000, 49_152])
def test_probabilities_are_those_of_softmax(vocab: int) -> None:
    logits = some(3, vocab, seed=3) * 6
    expected = law(logits.astype(np.float64), 0.7)
    assert np.allclose(softmax(logits, 0.7), expected, rtol=1e-5, atol=1e-9)
    places, shares = topk_probs(logits, min(4, vocab), 0.7)
    assert np.allclose(shares, np.take_along_axis(expected, places, -1), rtol=1e-5, atol=1e-9)


def test_a_logit_of_minus_infinity_has_no_probability() -> None:
    logits = some(1, 40)
    logits[0, [3, 38]] = -np.inf
    assert softmax(logits, 1.0)[0, [3, 38]].tolist() == [0.0, 0.0]


def test_probabilities_are_put_where_they_are_wanted() -> None:
    memory = np.zeros((4, 40), np.float32)
    assert softmax(some(2, 40), 0.7, memory[1:3]).ctypes.data == memory[1].ctypes.data
    assert np.array_equal(memory[1:3], softmax(some(2, 40), 0.7))
    assert not memory[[0, 3]].any()


@pytest.mark.parametrize("vocab", [1, 15, 16, 17, 49_152])
def test_overlap_is_the_sum_of_the_smaller(vocab: int) -> None:
    p, q = law(some(2, vocab, seed=5))
    for scale in (1.0, 0.3):
        assert overlap(p, q, 1.0 / scale) == pytest.approx(
            np.minimum(p * scale, q).sum(dtype=np.float64), rel=1e-6
        )


def test_noise_is_what_array_operations_make_of_it() -> None:
    key = (0x12345678, 0xFFFFFFF0)
    expected = rows_numpy.exponential_noise(np.arange(70_000), key)
    found = np.array(exponential_noise(range(70_000), key))
    small = expected < 1.0
    assert np.allclose(found[small], expected[small], rtol=1e-6, atol=0.0)
    assert np.allclose(found, expected, rtol=1e-2)


@pytest.mark.parametrize("vocab", [1, 15, 16, 17, 300, 49_152])
def test_the_first_to_arrive_is_the_least_time_over_weight(vocab: int) -> None:
    for seed in range(20):
        weights, key = np.exp(some(vocab, seed=seed)), (seed, 7 * seed)
        noise = rows_numpy.exponential_noise(np.arange(vocab), key)
        assert gumbel_argmax(weights, key) == (weights.astype(np.float64) / noise).argmax()
        assert gumbel_argmax(weights * (np.arange(vocab) == vocab // 2), key) == vocab // 2


@pytest.mark.parametrize("distinct", [True, False])
@pytest.mark.parametrize("vocab", [1, 3, 256, 257, 1000, 49_152])
def test_shares_find_the_places_that_array_operations_find(
    vocab: int, distinct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = law(some(5, vocab, seed=4) * 4)
    rows[1, 1:] = 0.0  # nothing is left after the first draw
    rows[2, : vocab // 2] = 0.0
    count = min(6, vocab)
    draw = [
        Rng(seed).draw_distinct if distinct else Rng(seed).draw_independent for seed in range(10)
    ]
    found = [one(rows, count) for one in draw]
    monkeypatch.setattr("draftwood.native.rows.in_cpp", lambda rows: False)
    draw = [
        Rng(seed).draw_distinct if distinct else Rng(seed).draw_independent for seed in range(10)
    ]
    for one, places in zip(draw, found, strict=True):
        expected = one(rows, count)
        known = np.take_along_axis(rows, expected, -1) > 0
        known[1, 1:] &= not distinct  # anything fills up
        assert np.array_equal(places[known], expected[known])


def test_what_does_not_run_in_cpp() -> None:
    assert not in_cpp(np.zeros(3))
    assert not in_cpp(np.zeros((3, 2), np.float16))
    assert not in_cpp(np.zeros((3, 2), np.float32).T)
    assert not in_cpp(np.zeros(0, np.float32))
