"""Rows that rejections wear down: as arrays, or as logits of which only sums are computed.

A rule that is written for them runs the same on both: ``testing`` proves it on either.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from draftwood.arrays import Float
from draftwood.native.logit_rows import LogitRow, Remainder
from draftwood.rng import Rng
from draftwood.sampling import LazyProbs
from draftwood.tree import DraftTree
from draftwood.verifiers.base import drawn, require_known, residual, with_token, without
from draftwood.verifiers.verifier import NodeProbs, Verdict


@runtime_checkable
class Row(Protocol):
    """A distribution of the next token."""

    def chance(self, token: int, /) -> float:
        """Probability of a token."""
        ...

    def array(self) -> Float[np.ndarray, " vocab"]:
        """All probabilities."""
        ...

    def draw(self, rng: Rng, /) -> int:
        """Draw a token."""
        ...


@runtime_checkable
class DraftRow(Protocol):
    """A distribution that siblings were drawn from."""

    def chance(self, token: int, /) -> float:
        """Probability of a token."""
        ...

    def array(self) -> Float[np.ndarray, " vocab"]:
        """All probabilities."""
        ...

    def without(self, token: int, /) -> "DraftRow":
        """The row once this token is drawn and put aside."""
        ...


@dataclass(frozen=True, eq=False)
class ArrayRow:
    """A row as an array."""

    probs: Float[np.ndarray, " vocab"]

    def chance(self, token: int) -> float:
        return float(self.probs[token])

    def array(self) -> Float[np.ndarray, " vocab"]:
        return self.probs

    def without(self, token: int) -> "ArrayRow":
        return ArrayRow(without(self.probs, token))

    def draw(self, rng: Rng) -> int:
        return rng.draw(self.probs)


@dataclass(frozen=True, eq=False)
class CertainRow:
    """A target's row at temperature 0: all probability on the likeliest token."""

    logits: Float[np.ndarray, "1 vocab"]
    token: int

    def chance(self, token: int) -> float:
        return float(token == self.token)

    def array(self) -> Float[np.ndarray, " vocab"]:
        row = np.zeros(self.logits.shape[-1], np.float32)
        row[self.token] = 1.0
        return row

    def draw(self, rng: Rng) -> int:
        return rng.draw_from_logits(self.logits, 0, 0.0)


def target_row(probs: NodeProbs, node: int) -> Row:
    """The target's distribution after a node.

    Raises:
        ValueError: where there is none, since the model's numbers are broken.
    """
    if not isinstance(probs, LazyProbs):
        return ArrayRow(probs[node])
    logits = probs.library_row(node)
    if logits is None:
        return ArrayRow(probs[node])
    return logits if isinstance(logits, LogitRow) else CertainRow(*logits)


def draft_row(tree: DraftTree, node: int) -> DraftRow:
    """The distribution that a node was drawn from."""
    row = None if tree.rows is None else tree.rows[tree.parent_list[node]]
    return row if isinstance(row, LogitRow) else ArrayRow(tree.row_of(node))


def minus(p: Row, q: DraftRow) -> Row:
    """Reject a token: norm([p - q]+), which may take the place of p in memory."""
    if isinstance(p, LogitRow | Remainder) and isinstance(q, LogitRow):
        return p.minus(q)[0]
    if isinstance(p, CertainRow):  # of another token than the rejected one
        return p
    return ArrayRow(residual(p.array(), q.array()))


def left_over(p: Row, q: DraftRow, weight: float) -> tuple[Row, float]:
    """Reject a path of weight w: norm([w p - q]+), and the sum that it is divided by.

    The row may take the place of p in memory; where the sum is 0, it is a row that need not be
    read.
    """
    if isinstance(p, LogitRow | Remainder) and isinstance(q, LogitRow) and weight > 0.0:
        return p.minus(q, weight)
    rest = np.maximum(weight * p.array() - q.array(), 0.0)
    total = float(rest.sum())
    return (ArrayRow(rest / total), total) if total > 0.0 else (p, 0.0)


def reject_in_turn(
    tree: DraftTree,
    target_probs: NodeProbs,
    rng: Rng,
    chance: Callable[[Row, DraftRow, int], float],
) -> Verdict:
    """Walk down from the root: try the siblings in turn, and reject each from what is left of p.

    Args:
        chance: of accepting a token, given what is left of p, the row q that the token was drawn
            from, and the token, which q can give; what is above 1 counts as 1.
    """
    require_known(tree, target_probs)
    joins = tree.draw in ("independent", "named")  # who drew the same token is one node
    alive = [0]
    while True:
        candidates = [child for node in alive for child in tree.children[node]]
        if not candidates or not tree.is_drawn:
            return Verdict(tree.path_to(alive[0]), drawn(target_probs, alive[0], rng))
        p, q = target_row(target_probs, alive[0]), draft_row(tree, candidates[0])
        for child in candidates:
            token = tree.token_list[child]
            q = draft_row(tree, child) if tree.draw == "named" else q
            if q.chance(token) == 0.0:
                continue
            if rng.accept(chance(p, q, token)):
                break
            p = minus(p, q)
            if tree.draw == "distinct":
                q = q.without(token)
        else:
            return Verdict(tree.path_to(alive[0]), p.draw(rng))
        alive = with_token(tree, candidates, token) if joins else [child]
