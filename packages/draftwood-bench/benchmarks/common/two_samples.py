"""Test whether two samples of pictures have one distribution."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

PERMUTATIONS = 999


def p_value(
    one: Float[np.ndarray, "pictures features"],
    other: Float[np.ndarray, "pictures features"],
    groups: Sequence[object],
    seed: int = 0,
) -> float:
    """P-value of the maximum mean discrepancy (Gretton et al. 2012), by permutations.

    Labels are permuted within groups, whose distributions differ: pictures of one name are
    exchanged with those of the same name alone.

    Args:
        one, other: features of both samples, in the order of the same groups.
        groups: of each picture of a sample.
        seed: of the permutations.
    """
    both = np.concatenate([one, other])
    spread = both.std(0)
    both = both[:, spread > 0] / spread[spread > 0]
    square = (both**2).sum(1)
    apart = np.maximum(square[:, None] + square - 2 * both @ both.T, 0)
    kernel = np.exp(-apart / np.median(apart[apart > 0]))
    np.fill_diagonal(kernel, 0.0)
    is_one = np.arange(len(both)) < len(one)
    chance, keys = np.random.default_rng(seed), np.array([*map(str, groups)] * 2)
    members = [np.flatnonzero(keys == key) for key in dict.fromkeys(keys.tolist())]
    found, more = discrepancy(kernel, is_one), 1
    for _ in range(PERMUTATIONS):
        mixed = is_one.copy()
        for places in members:
            mixed[places] = chance.permutation(is_one[places])
        more += discrepancy(kernel, mixed) >= found
    return more / (1 + PERMUTATIONS)


def discrepancy(kernel: Float[np.ndarray, "both both"], is_one: np.ndarray) -> float:
    """Squared discrepancy of two samples of one size, the diagonal left out."""
    sign, half = np.where(is_one, 1.0, -1.0), len(kernel) // 2
    within = half * (half - 1)
    mean = sign @ kernel @ sign
    between = 2 * (np.where(is_one, 1.0, 0.0) @ kernel @ np.where(is_one, 0.0, 1.0))
    return float((mean + between) / within - between / half**2)
