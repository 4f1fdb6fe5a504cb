"""Searches through rows give what plain tensor operations give."""

import pytest
import torch

from draftwood.native.rows import largest, place_of_share, searchable
from draftwood.testing.statistics import chi_square

pytestmark = pytest.mark.skipif(not searchable(torch.zeros(1)), reason="there is no C++ compiler")


def some(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("vocab", "count"), [(5, 5), (16, 1), (50, 8), (1000, 8), (49_152, 20)])
def test_the_largest_come_first_and_of_equal_ones_the_first(vocab: int, count: int) -> None:
    rows = (some(11, vocab) * 20).round() / 20  # many ties
    expected = rows.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    assert torch.equal(largest(rows, count), expected)
    strided = torch.cat([rows, rows.neg()], dim=1)[:, :vocab]
    assert torch.equal(largest(strided, count), expected)


def test_a_maximum_anywhere_is_found() -> None:
    for place in range(0, 300, 7):
        row = torch.zeros(1, 300)
        row[0, place] = 1.0
        assert largest(row, 1).item() == place


@pytest.mark.parametrize("vocab", [1, 7, 256, 1000, 50_000])
def test_shares_invert_the_cumulative_sum(vocab: int) -> None:
    weights = some(vocab, seed=3).relu() + torch.zeros(vocab).scatter_(0, torch.tensor([vocab // 2]), 1.0)
    cumulative = weights.double().cumsum(0)
    for share in [*torch.linspace(0, 0.999, 40).tolist(), 1 - 2**-53]:
        expected = int(torch.searchsorted(cumulative, share * cumulative[-1], right=True))
        last = int(weights.nonzero()[-1])
        assert abs(place_of_share(weights, share) - min(expected, last)) <= (0 if share < 0.9999 else last)
        assert weights[place_of_share(weights, share)] > 0


def test_draws_follow_the_weights_and_a_wrong_law_is_noticed() -> None:
    weights = torch.tensor([0.5, 0.0, 0.2, 0.05, 0.25])
    uniforms = torch.rand(20_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    counts = torch.zeros(5)
    for share in uniforms.tolist():
        counts[place_of_share(weights, share)] += 1
    assert chi_square(counts, weights) > 1e-4
    assert chi_square(counts, torch.tensor([0.47, 0.0, 0.2, 0.05, 0.28])) < 1e-4


def test_what_cannot_be_searched() -> None:
    assert not searchable(torch.zeros(3, dtype=torch.float64))
    assert not searchable(torch.zeros(3, 2, dtype=torch.bfloat16))
    assert not searchable(torch.zeros(3, 2).T)
    assert not searchable(torch.zeros(0))
