"""Blockwise parallel decoding's rules that keep what is nearly right: faster and lossy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from draftwood.validation import positive
from draftwood_methods.verifiers.base import LongestLiked, rank_of


@dataclass(frozen=True)
class TopN(LongestLiked):
    """Keep the longest path of tokens among the target's ``count`` likeliest, then draw from it.

    Stern et al. 2018 (arXiv:1811.03115). Lossy: the distribution of the text is not the target's;
    at a count of 1 and temperature 0 it is.

    Differs from the paper: trees, and of paths of equal length the first.

    Args:
        count: likeliest tokens that will do.

    Raises:
        ValueError: for a count below 1.
    """

    name: ClassVar[str] = "top-n"
    count: int = 2

    def __post_init__(self) -> None:
        positive("count", [self.count])

    def likes(self, p: Float[np.ndarray, " vocab"]) -> Callable[[int], bool]:
        return lambda token: bool(p[token] > 0.0) and rank_of(token, p) < self.count


@dataclass(frozen=True)
class Distance(LongestLiked):
    """Keep the longest path of tokens whose ids are near the target's likeliest, then draw from it.

    For tokens whose ids are ordered, as intensities of pixels are. Stern et al. 2018
    (arXiv:1811.03115). Lossy: the distribution of the text is not the target's; at a distance of 0
    and temperature 0 it is.

    Args:
        most: largest difference of ids.

    Raises:
        ValueError: for a difference below 0.
    """

    name: ClassVar[str] = "distance"
    most: int = 2

    def __post_init__(self) -> None:
        if self.most < 0:
            raise ValueError(f"most must be a difference of token ids, at least 0, got {self.most}")

    def likes(self, p: Float[np.ndarray, " vocab"]) -> Callable[[int], bool]:
        best = int(p.argmax())
        return lambda token: bool(p[token] > 0.0) and abs(token - best) <= self.most
