"""A chain that stops where the draft is likely to be rejected."""

import sys
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import numpy as np
from jaxtyping import Float

from draftwood.arrays import as_array
from draftwood.rng import Rng
from draftwood.shapes import Expand, Shape
from draftwood.tree import DraftTree
from draftwood_methods.shapes.base import EndingChain

Estimate = Literal["entropy", "probability"]
"""Estimate of a draft token's acceptance probability.

* ``entropy``: of the row that it is drawn from, 1 - sqrt(spread * entropy in nats).
* ``probability``: its own, under the drafter.
"""


@dataclass(frozen=True)
class Until(EndingChain):
    """Draw a chain until the probability that all of it is accepted falls below ``threshold``.

    SpecDec++ (Huang et al. 2024, arXiv:2405.19715) stops by the product of the chances along the
    chain, AdaEDL (Agrawal et al. 2024, arXiv:2410.18351) takes the chance of a token from the
    drafter's entropy, which asks for no training. The token that stops the chain stays: whether a
    node has a child depends on the node, its ancestors and their rows alone, so rejection keeps the
    target's distribution. To throw the drawn token away because it is unlikely would change it.

    Differs from the papers: no trained head, no threshold that moves with acceptance, and AdaEDL's
    chances are multiplied along the chain too.

    Args:
        length: most draft tokens.
        threshold: from 0, which never stops, to 1, which goes on only where the draft is certain.
        estimate: where the chances come from.
        spread: weight of the entropy.

    Raises:
        ValueError: for a value outside its range.
    """

    name: ClassVar[str] = "until"
    threshold: float = 0.3
    estimate: Estimate = "entropy"
    spread: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.threshold <= 1.0:
            raise ValueError(
                f"threshold must be a chance from 0, which never stops, to 1, got {self.threshold}"
            )
        if self.estimate not in get_args(Estimate) or not 0.0 <= self.spread < float("inf"):
            raise ValueError(
                f"estimate must be {' or '.join(get_args(Estimate))}, and spread finite and at"
                f" least 0, got {self.estimate!r} and {self.spread}"
            )

    @property
    def label(self) -> str:
        return f"until {self.threshold:g} by {self.estimate}, at most {self.length}"

    def with_length(self, length: int) -> Shape:
        return replace(self, length=length)

    def grow(
        self, root: int, expand: Expand, rng: Rng, max_draft_len: int = sys.maxsize
    ) -> DraftTree:
        tree, rows, kept = DraftTree.of([root], [-1], self.draw), [], 1.0
        while len(rows) < min(self.length, max_draft_len) and (not rows or kept >= self.threshold):
            row = as_array(expand(tree, len(rows)))
            token = int(rng.draw_distinct(row, 1)[0, 0])
            rows.append(row)
            tree = DraftTree.chain([*tree.token_list, token], self.draw)
            kept *= self._chance(row[0], token)
        probs = np.concatenate(rows) if rows else None
        return DraftTree(tree.tokens, tree.parents, probs, self.draw)

    def _chance(self, row: Float[np.ndarray, " vocab"], token: int) -> float:
        if self.estimate == "probability":
            return float(row[token])
        return max(0.0, 1.0 - (self.spread * entropy(row)) ** 0.5)


def entropy(row: Float[np.ndarray, " vocab"]) -> float:
    """Entropy of a distribution in nats."""
    likely = row[row > 0.0]
    return -float((likely * np.log(likely)).sum())
