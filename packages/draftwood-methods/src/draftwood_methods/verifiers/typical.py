"""Medusa's typical acceptance: faster and lossy."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from draftwood.rng import Rng
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers.verifier import NodeProbs, Verdict
from draftwood_methods.verifiers.base import longest_path


@dataclass(frozen=True)
class Typical:
    """Keep the longest path of tokens the target finds likely enough, then draw from the target.

    A token passes if p(token) > min(epsilon, delta exp(-entropy of p)): where the target is unsure,
    less likely tokens are good enough. Lossy: the distribution of the text is not the target's. Cai
    et al. 2024 (Medusa, arXiv:2401.10774).

    Differs from the paper: the first token of a step is drawn from p like any other and not taken
    greedily, and of paths of equal length the first wins.

    Args:
        epsilon: probability that always suffices, between 0 and 1.
        delta: factor of the bound that falls with entropy, at least 0.

    Raises:
        ValueError: for a value outside its range.
    """

    epsilon: float = 0.09
    delta: float = 0.3

    name: ClassVar[str] = "typical"
    exact_for: ClassVar[frozenset[Draw]] = frozenset()

    def __post_init__(self) -> None:
        if not 0.0 <= self.epsilon <= 1.0 or not self.delta >= 0.0:
            raise ValueError(f"epsilon must be between 0 and 1 and delta at least 0, got {self}")

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        longest = longest_path(tree, target_probs, self._likes)
        return Verdict(tree.path_to(longest), rng.draw(target_probs[longest]))

    def _likes(self, p: Float[np.ndarray, " vocab"]) -> Callable[[int], bool]:
        bound = self._bound(p)
        return lambda token: float(p[token]) > bound

    def _bound(self, p: Float[np.ndarray, " vocab"]) -> float:
        likely = p[p > 0.0]
        return min(self.epsilon, self.delta * math.exp(float((likely * np.log(likely)).sum())))
