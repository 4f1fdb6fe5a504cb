"""Sample the target and follow the child that agrees."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood.rng import Rng
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers.base import drawn, require_known, with_token
from draftwood.verifiers.verifier import NodeProbs, Verdict


@dataclass(frozen=True)
class Match:
    """Draw the target's own next token at each node and go to the child that holds it.

    Exact for every tree however it was made, since each emitted token is a genuine draw from the
    target. Accepts with probability p(children). At temperature 0 this is the greedy walk of every
    tree method.
    """

    name: ClassVar[str] = "match"
    exact_for: ClassVar[frozenset[Draw]] = frozenset(
        {"chosen", "coupled", "distinct", "independent", "greedy-plus-one", "named"}
    )
    follows_draws: ClassVar[bool] = True

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        require_known(tree, target_probs)
        alive = [0]  # a tree may hold the same token twice below one node
        while True:
            token = drawn(target_probs, alive[0], rng)
            agreeing = with_token(
                tree, [child for node in alive for child in tree.children[node]], token
            )
            if not agreeing:
                return Verdict(tree.path_to(alive[0]), token)
            alive = agreeing
