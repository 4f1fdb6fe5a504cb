from fractions import Fraction
from itertools import combinations, permutations

import numpy as np
import pytest
import torch

from draftwood.testing import outcomes
from draftwood_bench.run.optimal import _distinct_by_race, _distinct_pairs, optimal_acceptance


def law(generator: torch.Generator, vocab: int, spread: float) -> np.ndarray:
    scores = torch.randn(vocab, dtype=torch.float64, generator=generator) * spread
    return scores.softmax(-1).numpy()


def all_inside(q: list[Fraction], inside: tuple[int, ...], count: int) -> Fraction:
    """Probability that ``count`` tokens without replacement lie in the set, one order after the
    other.
    """
    total = Fraction(0)
    for order in permutations(inside, count):
        chance, left = Fraction(1), Fraction(1)
        for token in order:
            chance, left = chance * q[token] / left, left - q[token]
        total += chance
    return total


def fractions(q: np.ndarray) -> list[Fraction]:
    exact = [Fraction(value) for value in q.tolist()]
    return [value / sum(exact) for value in exact]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("spread", [0.5, 3.0, 10.0, 20.0])
def test_quadrature_equals_ordered_enumeration(spread: float, count: int) -> None:
    q = law(torch.Generator().manual_seed(count), 6, spread)
    exact = [float(all_inside(fractions(q), tuple(range(size)), count)) for size in range(1, 7)]
    assert _distinct_by_race(q, count).tolist() == pytest.approx(exact, abs=1e-12)
    if count == 2:
        assert _distinct_pairs(q).tolist() == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("draw", ["distinct", "independent"])
def test_the_best_set_is_among_those_looked_at(draw: str, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    for _ in range(20):
        p, q = law(generator, 5, 1.5), law(generator, 5, 1.5)
        exact, best = fractions(q), 0.0
        for size in range(1, 6):
            for inside in combinations(range(5), size):
                together = all_inside(exact, inside, count)
                if draw == "independent":
                    together = sum(exact[token] for token in inside) ** count
                best = min(best, float(p[list(inside)].sum()) - float(together))
        assert optimal_acceptance(p, q, count, draw) == pytest.approx(1.0 + best, abs=1e-12)


def test_one_child_is_worth_the_overlap_however_drawn() -> None:
    generator = torch.Generator().manual_seed(1)
    p, q = law(generator, 500, 2.0), law(generator, 500, 2.0)
    for draw in ("distinct", "independent", "greedy-plus-one"):
        assert optimal_acceptance(p, q, 1, draw) == pytest.approx(
            float(np.minimum(p, q).sum()), abs=1e-12
        )


@pytest.mark.parametrize("draw", ["distinct", "independent", "greedy-plus-one"])
def test_grows_with_the_number_of_children_in_a_large_vocabulary(draw: str) -> None:
    generator = torch.Generator().manual_seed(2)
    p, q = law(generator, 300, 2.0).astype(np.float32), law(generator, 300, 2.0).astype(np.float32)
    values = [optimal_acceptance(p, q, count, draw) for count in (1, 2, 3, 4, 6)]
    assert values == sorted(values)
    assert 0.0 < values[0] < values[-1] < 1.0


def test_children_that_cannot_be_drawn_do_not_count() -> None:
    p = np.array([0.2, 0.3, 0.5], np.float32)
    q = np.array([0.5, 0.5, 0.0], np.float32)
    for count in (2, 3, 7):
        assert optimal_acceptance(p, q, count, "distinct") == pytest.approx(0.5)
        assert optimal_acceptance(p, q, count, "greedy-plus-one") == pytest.approx(0.5)
    assert optimal_acceptance(p, p, 2, "independent") == pytest.approx(1.0)


def test_refuses_what_it_cannot_know() -> None:
    p = np.array([0.5, 0.5], np.float32)
    with pytest.raises(ValueError, match="sum of p over the children"):
        optimal_acceptance(p, p, 2, "chosen")
    with pytest.raises(ValueError, match="at least 1 child"):
        optimal_acceptance(p, p, 0)


def test_enumerated_order_law_agrees_with_the_formula() -> None:
    q = law(torch.Generator().manual_seed(3), 4, 1.0)
    drawn = outcomes(lambda rng: tuple(rng.draw_distinct(q[None], 3)[0].tolist()))
    inside = sum(probability for probability, order in drawn if max(order) <= 2)
    assert inside == pytest.approx(float(all_inside(fractions(q), (0, 1, 2), 3)), abs=1e-12)
