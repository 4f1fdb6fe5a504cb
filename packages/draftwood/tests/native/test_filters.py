"""Rules of sampling in C++, against those of NumPy."""

from collections.abc import Sequence
from ctypes import addressof
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float

from draftwood.arrays import address_of
from draftwood.native import library
from draftwood.native.filters import Filters
from draftwood.sampling import Context, Sampling

pytestmark = pytest.mark.skipif(not library.available(), reason="no C++ compiler")

SIZES = (3, 16, 300, 5000)
TEXT, PROMPT = [0, 2, 2, 1, 2, 0], 3
CUTS: list[dict[str, Any]] = [
    {"top_k": 1},
    {"top_k": 2},
    {"top_k": 100},
    {"top_p": 0.3},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.01},
]
CHANGES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.8},
    {"presence_penalty": 0.7, "frequency_penalty": -0.4},
    {"logit_bias": {0: -3.0, 2: 4.0}},
    {"logit_bias": {1: -float("inf")}, "repetition_penalty": 2.0, "frequency_penalty": 1.0},
]


def row_of(size: int, scale: float = 2.0) -> np.ndarray:
    return scale * np.random.default_rng(size).standard_normal(size, np.float32)


def filtered(
    sampling: Sampling,
    logits: Float[np.ndarray, " vocab"],
    tokens: Sequence[int] = (),
    prompt: int = 0,
) -> Float[np.ndarray, " vocab"]:
    """A row of logits with minus infinity for what cannot be drawn.

    Args:
        tokens: before the place of the row, for rules that go by them.
        prompt: how many of these are not the answer's.
    """
    rules, text = Filters(sampling), library.integers(tokens)
    row = np.ascontiguousarray(logits, np.float32)
    result = np.empty_like(row)
    library.library().draftwood_filter(
        *(rules.structure, addressof(text), len(tokens), prompt),
        *(sampling.temperature, address_of(row), len(row), address_of(result)),
    )
    return result


def laws(row: np.ndarray, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities by the rows that filters leave, and by NumPy."""
    left = filtered(sampling, row, TEXT, PROMPT)
    found = Sampling(sampling.temperature).probs(left[None].astype(np.float64))[0]
    wanted = sampling.probs(row[None], [Context(TEXT, PROMPT)])[0]
    return found, wanted


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("rules", [*CUTS, *CHANGES, CUTS[-1] | CHANGES[-1]], ids=str)
def test_filters_leave_the_law_of_the_rules(
    size: int, temperature: float, rules: dict[str, Any]
) -> None:
    found, wanted = laws(row_of(size), Sampling(temperature, **rules))
    assert np.array_equal(found > 0, wanted > 0)
    assert np.allclose(found, wanted, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("other", [{"top_p": 0.8}, {"repetition_penalty": 1.3}])
def test_another_rule_gives_another_law(other: dict[str, Any]) -> None:
    """The comparison finds a rule that is not kept."""
    own: dict[str, Any] = {"top_p": 0.9, "repetition_penalty": 1.4}
    found, _ = laws(row_of(16), Sampling(1.0, **own))
    _, wanted = laws(row_of(16), Sampling(1.0, **own | other))
    assert not np.allclose(found, wanted, rtol=1e-4, atol=1e-9)


def test_ties_with_the_last_of_top_k_are_kept() -> None:
    row = np.array([1.0, 3.0, 2.0, 2.0, 2.0, 0.0], np.float32)
    left = filtered(Sampling(1.0, top_k=2), row)
    assert np.isfinite(left).tolist() == [False, True, True, True, True, False]


@pytest.mark.parametrize("rules", [{"top_p": 0.05, "top_k": 200}, {"top_p": 0.6}], ids=str)
def test_of_ties_in_a_nucleus_the_first_are_kept(rules: dict[str, Any]) -> None:
    row = np.zeros(1000, np.float32)
    row[::7] = 3.0
    found, wanted = laws(row, Sampling(1.0, **rules))
    assert np.array_equal(found > 0, wanted > 0)
    kept = np.flatnonzero(wanted)
    assert kept.tolist() == list(range(0, 7 * len(kept), 7))


def test_a_certain_choice_is_only_penalised() -> None:
    row = row_of(300)
    sampling = Sampling(0.0, top_k=3, top_p=0.5, frequency_penalty=0.5)
    left = filtered(sampling, row, TEXT, PROMPT)
    assert np.isfinite(left).all()
    assert left[2] == pytest.approx(row[2] - 0.5)  # once in the answer
    assert left[3] == row[3]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_none_shows_itself(value: float) -> None:
    row = row_of(300)
    row[7] = value
    left = filtered(Sampling(1.0, top_p=0.5), row)
    assert not np.isfinite(left.max())


def test_nothing_is_left_where_all_is_banned() -> None:
    banned = {token: -float("inf") for token in range(3)}
    left = filtered(Sampling(1.0, logit_bias=banned), row_of(3))
    assert (left == -np.inf).all()


def test_biases_of_tokens_beyond_the_vocabulary_are_refused() -> None:
    sampling = Sampling(1.0, logit_bias={63: 1.0, 64: 1.0})
    sampling.require_biases(65)
    with pytest.raises(ValueError, match=r"outside 0\.\.63: \[63, 64\]"):
        sampling.require_biases(64)
