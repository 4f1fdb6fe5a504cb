"""Which guesses are kept: the rules of the game."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from draftwood.rng import Rng
from draftwood.sampling import LazyProbs
from draftwood.tree import DraftTree, Draw


@runtime_checkable
class NodeProbs(Protocol):
    """The target's distribution at each node, by node number; a tensor [nodes vocab] is one.

    Rows are asked for one at a time because most are never looked at: a walk from the root reads only the accepted
    path, and turning logits of 64 nodes into probabilities costs more than everything else in a step on a CPU.
    """

    def __getitem__(self, node: int, /) -> Float[Tensor, " vocab"]: ...


@dataclass(frozen=True)
class Verdict:
    """What a verifier decided.

    Attributes:
        path: accepted nodes from the root's child downwards, root excluded; each is the child of the one before.
        next_token: drawn after the last accepted node; the root of the next tree.
    """

    path: list[int]
    next_token: int


@runtime_checkable
class Verifier(Protocol):
    """A pure function from a tree and the target's probabilities to a verdict, with printable settings.

    ``exact_for`` lists the draws on which the law of the emitted tokens is the target's; empty means lossy.
    """

    name: ClassVar[str]
    exact_for: ClassVar[frozenset[Draw]]

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict: ...


def residual(p: Float[Tensor, " vocab"], q: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
    """What is left of p once q is taken away, normalised: norm([p - q]+).

    Where nothing is left p equals q, so no token can have been rejected and p itself is returned.
    """
    rest = (p - q).clamp(min=0.0)
    total = rest.sum()
    return rest / total if total > 0 else p


def without(q: Float[Tensor, " vocab"], tokens: int | Sequence[int]) -> Float[Tensor, " vocab"]:
    """q once these tokens are drawn and put aside, normalised; all zeros where nothing is left."""
    rest = q.clone()
    rest[tokens] = 0.0
    total = rest.sum()
    return rest / total if total > 0 else rest


def drawn(probs: NodeProbs, node: int, rng: Rng) -> int:
    """A token drawn from a node's distribution."""
    return probs.draw(node, rng) if isinstance(probs, LazyProbs) else rng.draw(probs[node])


def twins(tree: DraftTree, candidates: Sequence[int], token: int) -> list[int]:
    """The candidates that hold this token: together they are one node of the sequence.

    Those with children come first, because a leaf may have no row in ``tree.probs``.
    """
    return sorted((c for c in candidates if tree.token_list[c] == token), key=lambda c: not tree.children[c])
