"""Does a sample follow a distribution?"""

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from draftwood.arrays import Float, Int, Shaped, as_array

Amounts = Mapping[Any, float] | Shaped[np.ndarray, " outcomes"]
"""One number per outcome; in an array or a tensor, outcomes are numbered."""


def chi_square(counts: Amounts, law: Amounts) -> float:
    """P-value of a sample from a distribution, by Pearson's chi-square.

    It is the probability that a sample from the distribution is at least this far from it.

    Cells that expect fewer than 5 are merged. A sample holding something of probability 0 gives 0.
    A correct program gives any value below x with probability x, so tests compare with something
    like 1e-4 and use a fixed seed.

    Raises:
        ValueError: for an empty sample.
    """
    counts, law = _by_outcome(counts), _by_outcome(law)
    total = sum(counts.values())
    if total == 0:
        raise ValueError("chi_square needs at least one observation, got none")
    if any(count > 0 and law.get(outcome, 0.0) <= 0.0 for outcome, count in counts.items()):
        return 0.0
    cells = [
        (total * chance, counts.get(outcome, 0)) for outcome, chance in law.items() if chance > 0.0
    ]
    cells.sort(reverse=True)
    while len(cells) > 1 and cells[-1][0] < 5.0:  # the smallest goes to the next smallest
        (expected, seen), (expected_next, seen_next) = cells.pop(), cells.pop()
        cells.append((expected + expected_next, seen + seen_next))
    statistic = sum((seen - expected) ** 2 / expected for expected, seen in cells)
    return chi_square_tail(statistic, len(cells) - 1) if len(cells) > 1 else 1.0


def chi_square_tail(statistic: float, freedom: int) -> float:
    """Probability that a chi-square variable of so many degrees of freedom is at least this large.

    The regularized upper incomplete gamma function Q(freedom / 2, statistic / 2), by its recurrence
    Q(a + 1, x) = Q(a, x) + x^a e^-x / Gamma(a + 1) from Q(1/2, x) = erfc(sqrt(x)) or Q(1, x) =
    e^-x; all terms are positive.
    """
    x, a = statistic / 2, 0.5 if freedom % 2 else 1.0
    if x <= 0.0:
        return 1.0
    tail = math.erfc(math.sqrt(x)) if freedom % 2 else math.exp(-x)
    while a < freedom / 2:
        tail += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
        a += 1.0
    return min(tail, 1.0)


def ranked_chi_square(
    tokens: Int[np.ndarray, " tokens"], laws: Float[np.ndarray, "tokens vocab"]
) -> float:
    """P-value of tokens that were each drawn from a distribution of their own.

    It is the probability that such tokens are at least this far from their distributions. What is
    counted is how often the likeliest token of its distribution was drawn, the second likeliest,
    and so on: a rule that takes what is likely or what was drafted too often shows there, in
    whatever contexts it does so. Each distribution may depend on all tokens before, as it does in a
    text. Ranks that expect fewer than 5 are merged.

    Args:
        tokens: drawn.
        laws: the distribution of each.

    Raises:
        ValueError: for no tokens.
    """
    if len(tokens) == 0:
        raise ValueError("ranked_chi_square needs at least one token, got none")
    laws = as_array(laws).astype(np.float64)
    order = np.argsort(-laws, axis=-1, kind="stable")
    chances = np.take_along_axis(laws, order, axis=-1)
    drawn = (order == as_array(tokens)[:, None]).astype(np.float64)
    if (chances[drawn > 0] <= 0.0).any():
        return 0.0
    expected = chances.sum(0)  # falls from rank to rank
    kept = int((expected >= 5.0).sum())
    ranks = max(1, kept + bool(expected[kept:].sum() >= 5.0))
    drawn, chances = (
        np.concatenate([t[:, : ranks - 1], t[:, ranks - 1 :].sum(-1, keepdims=True)], -1)
        for t in (drawn, chances)
    )
    off = (drawn - chances).sum(0)[:-1]  # the last rank follows from the others
    spread = np.diag(chances.sum(0)) - chances.T @ chances
    if ranks == 1 or not spread.diagonal()[:-1].min() > 0.0:
        return 1.0
    return chi_square_tail(float(off @ np.linalg.solve(spread[:-1, :-1], off)), ranks - 1)


def _by_outcome(amounts: Amounts) -> dict[Hashable, float]:
    return dict(amounts) if isinstance(amounts, Mapping) else dict(enumerate(amounts.tolist()))
