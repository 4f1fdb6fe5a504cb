"""Statistical tests of samples, and levels of significance."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

STRICT = ("float32", "float64", "int8", "int4")
"""Types of weights where no difference of two texts is excused."""

SHUFFLES = 19_999


# of a test whose p-value is told: with fewer a distribution that is wrong by a tenth goes unseen
LEAST_SAMPLES = 1000


# of the joint test of a configuration: a lossless method falls below it once in a thousand
SIGNIFICANCE = 1e-3


def is_strict(dtype: str) -> bool:
    """True where no difference is excused of a model in this type, which may name its cache's."""
    return dtype.partition("+")[0] in STRICT


def two_sample(one: Sequence[int], other: Sequence[int], seed: int = 0) -> float:
    """Probability that two samples of one distribution differ at least this much.

    It is found by shuffling which token is whose. The measure of difference is Pearson's chi-square
    of homogeneity. The test is exact for samples of any size.

    Raises:
        ValueError: for an empty sample.
    """
    if not one or not other:
        raise ValueError(
            f"a two-sample test needs two samples, got {len(one)} and {len(other)} tokens"
        )
    both = Counter(one) + Counter(other)
    totals = np.array(list(both.values()))
    share = len(one) / (len(one) + len(other))
    seen = np.array([Counter(one)[token] for token in both])

    def difference(counts: np.ndarray) -> np.ndarray:
        return ((counts - share * totals) ** 2 / totals).sum(-1)

    shuffled = np.random.default_rng(seed).multivariate_hypergeometric(
        totals, len(one), SHUFFLES, method="marginals"
    )
    extreme = int((difference(shuffled) >= difference(seen) - 1e-9).sum())
    return (1 + extreme) / (1 + SHUFFLES)


def joint(p_values: Sequence[float]) -> float:
    """One p-value for independent ones, by Fisher's rule. Raises ValueError for none."""
    if not p_values:
        raise ValueError("there is no p-value to join")
    half = torch.tensor([len(p_values), -sum(np.log(p_values))], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
