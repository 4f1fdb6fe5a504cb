"""Protocol of a verifier: a verdict on a tree."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from draftwood.arrays import Float
from draftwood.native.step import Rule
from draftwood.rng import Rng
from draftwood.tree import DraftTree, Draw


@runtime_checkable
class NodeProbs(Protocol):
    """The target's distribution at each node, by node number; an array [nodes vocab] is one.

    Rows are asked for one at a time because most are never looked at: a walk from the root reads
    only the accepted path, and turning logits of 64 nodes into probabilities costs more than
    everything else in a step on a CPU.
    """

    def __getitem__(self, node: int, /) -> Float[np.ndarray, " vocab"]: ...


@dataclass(frozen=True)
class Verdict:
    """Decision of a verifier.

    Attributes:
        path: accepted nodes from the root's child downwards, root excluded; each is the child of
            the one before.
        next_token: drawn after the last accepted node; the root of the next tree.
    """

    path: list[int]
    next_token: int


@runtime_checkable
class Verifier(Protocol):
    """A pure function from a tree and the target's probabilities to a verdict.

    Its settings are printable. ``exact_for`` lists the draws on which the distribution of the
    emitted tokens is the target's; empty means lossy.
    """

    name: ClassVar[str]
    exact_for: ClassVar[frozenset[Draw]]

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict: ...


def follows_draws(verifier: Verifier) -> bool:
    """True if it draws the target's own next token at each node and goes to the child that holds
    it, as the library does by itself.

    A subclass of such a verifier has to say so again, in ``follows_draws``: it may differ from its
    parent in anything.
    """
    return vars(type(verifier)).get("follows_draws", False)


def writes_same_text(verifier: Verifier, draws: frozenset[Draw], greedy: bool) -> bool:
    """True if a text is the same whatever is drafted.

    It is where the verifier takes the target's own draws, and at temperature 0 with every verifier
    that is exact: the likeliest token is the only one.

    Args:
        draws: that siblings of the trees may have.
        greedy: whether the temperature is 0.
    """
    return follows_draws(verifier) or (greedy and draws <= verifier.exact_for)


def library_rule(verifier: Verifier) -> Rule | None:
    """Rule of the library that does what the verifier does; None where it has none.

    A subclass has to say so again, as with ``follows_draws``.
    """
    return "match" if follows_draws(verifier) else vars(type(verifier)).get("library_rule")
