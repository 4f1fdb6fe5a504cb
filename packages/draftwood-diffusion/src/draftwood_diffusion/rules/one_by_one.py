"""One place a pass: the slowest writing, and the measure of all other rules.

The orders are those of published samplers: confidence and chance (LLaDA, Nie et al. 2025,
arXiv:2502.09992), margin and entropy (Dream, Ye et al. 2025, arXiv:2508.15487).
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from draftwood_diffusion.rules.rule import UnmaskingRule
from draftwood_diffusion.view import View

LLADA = "LLaDA, Nie et al. 2025, arXiv:2502.09992"
DREAM = "Dream, Ye et al. 2025, arXiv:2508.15487"


@dataclass(frozen=True)
class OneByOne(UnmaskingRule):
    """The open place of the highest score."""

    is_one_by_one: ClassVar[bool] = True

    @abstractmethod
    def score(self, view: View) -> Float[np.ndarray, " places"]:
        """Score each place."""

    def choose(self, view: View) -> Int[np.ndarray, " 1"]:
        return np.array([view.best(self.score(view))])


class ByConfidence(OneByOne):
    """The place whose likeliest token is likeliest."""

    name: ClassVar[str] = "one-by-one"
    summary: ClassVar[str] = "one token a pass, the most confident place first"
    source: ClassVar[str] = LLADA

    def score(self, view: View) -> Float[np.ndarray, " places"]:
        return view.confidence


class ByMargin(OneByOne):
    """The place whose likeliest token leads by most."""

    name: ClassVar[str] = "by-margin"
    summary: ClassVar[str] = "one token a pass, the place of the widest lead first"
    source: ClassVar[str] = DREAM

    def score(self, view: View) -> Float[np.ndarray, " places"]:
        return view.margin


class ByEntropy(OneByOne):
    """The place whose distribution has the least entropy."""

    name: ClassVar[str] = "by-entropy"
    summary: ClassVar[str] = "one token a pass, the place of least entropy first"
    source: ClassVar[str] = DREAM

    def score(self, view: View) -> Float[np.ndarray, " places"]:
        return -view.entropy


class LeftToRight(OneByOne):
    """The first open place."""

    name: ClassVar[str] = "left-to-right"
    summary: ClassVar[str] = "one token a pass, in reading order"
    source: ClassVar[str] = DREAM

    def score(self, view: View) -> Float[np.ndarray, " places"]:
        return -np.arange(len(view.tokens), dtype=np.float64)


class InRandomOrder(OneByOne):
    """The open place of the highest number from the seed."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "one token a pass, in an order of the seed"
    source: ClassVar[str] = LLADA

    def score(self, view: View) -> Float[np.ndarray, " places"]:
        return view.order
