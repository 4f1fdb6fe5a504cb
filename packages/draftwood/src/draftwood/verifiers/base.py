"""Functions that the rules for keeping or rejecting draft tokens share."""

from collections.abc import Sequence

import numpy as np

from draftwood.arrays import Float
from draftwood.rng import Rng
from draftwood.sampling import LazyProbs
from draftwood.tree import UNBOUNDED, DraftTree
from draftwood.verifiers.verifier import NodeProbs


def require_known(tree: DraftTree, target_probs: NodeProbs) -> None:
    """Raise ValueError for draft tokens that the target's vocabulary does not hold.

    A negative one would index the row from its end, and be accepted.
    """
    rows = target_probs.logits if isinstance(target_probs, LazyProbs) else target_probs
    drafted = tree.token_list[1:]
    vocab = rows.shape[-1] if isinstance(rows, np.ndarray) else UNBOUNDED
    if drafted and not (min(drafted) >= 0 and max(drafted) < vocab):
        wrong = next(token for token in drafted if not 0 <= token < vocab)
        raise ValueError(
            "draft tokens must be 0 or more and below the size of the target's vocabulary, got"
            f" {wrong}; draft with a model of the same vocabulary"
        )


def residual(
    p: Float[np.ndarray, " vocab"], q: Float[np.ndarray, " vocab"]
) -> Float[np.ndarray, " vocab"]:
    """Residual distribution of p once q is taken away: norm([p - q]+).

    Where nothing is left p equals q, so no token can have been rejected and p itself is returned.
    """
    rest = np.maximum(p - q, 0.0)
    total = rest.sum()
    return rest / total if total > 0 else p


def without(
    q: Float[np.ndarray, " vocab"], tokens: int | Sequence[int]
) -> Float[np.ndarray, " vocab"]:
    """q once these tokens are drawn and put aside, normalised; all zeros where nothing is left."""
    rest = q.copy()
    rest[tokens] = 0.0
    total = rest.sum()
    return rest / total if total > 0 else rest


def drawn(probs: NodeProbs, node: int, rng: Rng) -> int:
    """Draw a token from a node's distribution."""
    return probs.draw(node, rng) if isinstance(probs, LazyProbs) else rng.draw(probs[node])


def with_token(tree: DraftTree, candidates: Sequence[int], token: int) -> list[int]:
    """Select the candidates with this token: together they are one node of the sequence.

    Those with children come first, because a leaf may have no row in ``tree.probs``.
    """
    return sorted(
        (c for c in candidates if tree.token_list[c] == token), key=lambda c: not tree.children[c]
    )
