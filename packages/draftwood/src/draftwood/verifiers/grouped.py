"""Rejection sampling by groups of tokens: faster and lossy."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from draftwood.arrays import Float, Int
from draftwood.rng import Rng
from draftwood.tree import DraftTree, Draw
from draftwood.validation import positive
from draftwood.verifiers.rows import DraftRow, Row, reject_in_turn
from draftwood.verifiers.verifier import NodeProbs, Verdict


@dataclass(frozen=True)
class Grouped:
    """Accept a draft token with the chance of a whole group of tokens like it.

    The group holds the token and those beside it in the target's ranking whose probabilities are
    near its own, less those whose vectors are far; no token further on takes their place. sum(p) /
    sum(q) over the group takes the place of p / q. A rejected token is replaced from norm([p -
    q]+). Where many tokens will do, as codes of pictures may, more draft tokens are kept. Grouped
    Speculative Decoding (So et al. 2025, arXiv:2508.07747). Lossy: the distribution of the text is
    not the target's; with a group of 1 it is, draw by draw as with ``Rejection``, and at
    temperature 0.

    Differs from the paper: a token that the target's options forbid is never kept, and distances
    between tokens' vectors are looked at only where vectors are given.

    Args:
        group: tokens of a group at most (G), the draft token among them; one side of an even one is
            the lower.
        delta: probability by which the others differ from the draft token's at most.
        vectors: of all tokens, as a codebook has them; not a number for tokens without one.
        distance: squared distance (d) of the others' vectors from the draft token's at most.

    Raises:
        ValueError: for a value outside its range.
    """

    name: ClassVar[str] = "grouped"
    exact_for: ClassVar[frozenset[Draw]] = frozenset()
    group: int = 10
    delta: float = 0.15
    vectors: Float[np.ndarray, "vocab size"] | None = field(default=None, compare=False, repr=False)
    distance: float = 0.5

    def __post_init__(self) -> None:
        positive("group", [self.group])
        if not 0.0 <= self.delta <= 1.0:
            raise ValueError(f"delta must be a probability from 0 to 1, got {self.delta}")
        if not self.distance >= 0.0:
            raise ValueError(f"distance must be a number of at least 0, got {self.distance}")

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        return reject_in_turn(tree, target_probs, rng, self._chance)

    def _chance(self, p: Row, q: DraftRow, token: int) -> float:
        own = p.chance(token)
        if self.group == 1 or own == 0.0:
            return own / q.chance(token)
        others = self._beside(p.array(), token)
        likely = own + float(p.array()[others].sum())
        return likely / (q.chance(token) + float(q.array()[others].sum()))

    def _beside(self, p: Float[np.ndarray, " vocab"], token: int) -> Int[np.ndarray, " others"]:
        """The other tokens of a group."""
        apart = p - p[token]
        near = np.abs(apart) <= self.delta
        near[token] = False
        above, below = np.flatnonzero(near & (apart > 0)), np.flatnonzero(near & (apart <= 0))
        others = np.concatenate(
            [
                _least(above, apart[above], (self.group - 1) // 2),
                _least(below, -apart[below], self.group // 2),
            ]
        )
        if self.vectors is None:
            return others
        away = ((self.vectors[others] - self.vectors[token]) ** 2).sum(-1)
        return others[away <= self.distance]


def _least(
    tokens: Int[np.ndarray, " tokens"], by: Float[np.ndarray, " tokens"], count: int
) -> Int[np.ndarray, " least"]:
    """The ``count`` tokens of the least numbers, in no order; all where there are no more."""
    return tokens if len(tokens) <= count else tokens[np.argpartition(by, count)[:count]]
