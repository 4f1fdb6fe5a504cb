"""SpecDec's relaxed verification: what is nearly the likeliest is kept, faster and lossy."""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from draftwood.validation import positive
from draftwood_methods.verifiers.base import LongestLiked, rank_of


@dataclass(frozen=True)
class Relaxed(LongestLiked):
    """Keep the longest path of tokens that are among the target's ``beta`` likeliest and at most
    ``tau`` nats less likely than the first, then draw from it.

    Spec-Verification (Xia et al. 2022, arXiv:2203.16487). Lossy: the distribution of the text is
    not the target's; with a beta of 1 or a tau of 0, and temperature 0, it is.

    Differs from the paper: trees, and of paths of equal length the first; the token behind the
    path is drawn, where the paper takes the likeliest.

    Args:
        beta: likeliest tokens that will do.
        tau: largest difference of log probabilities from the likeliest, at least 0.

    Raises:
        ValueError: for a value outside its range.
    """

    name: ClassVar[str] = "relaxed"
    beta: int = 3
    tau: float = 1.0

    def __post_init__(self) -> None:
        positive("beta", [self.beta])
        if not self.tau >= 0.0:
            raise ValueError(f"tau must be a difference of log probabilities, got {self.tau}")

    def likes(self, p: Float[np.ndarray, " vocab"]) -> Callable[[int], bool]:
        least = float(p.max()) * exp(-self.tau)
        most = 1 if self.tau == 0.0 else self.beta  # one of several that are as likely

        def will_do(token: int) -> bool:
            own = float(p[token])
            return own > 0.0 and own >= least and rank_of(token, p) < most

        return will_do
