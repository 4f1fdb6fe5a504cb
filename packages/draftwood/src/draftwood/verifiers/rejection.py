"""Rejection sampling: one draft token, or siblings drawn in any order from known rows."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood.native.step import Rule
from draftwood.rng import Rng
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers.base import drawn, require_known, with_token
from draftwood.verifiers.rows import draft_row, minus, target_row
from draftwood.verifiers.verifier import NodeProbs, Verdict


@dataclass(frozen=True)
class Rejection:
    """Accept a drafted token with probability min(1, p/q), otherwise go on with what is left of p.

    One child per node is speculative sampling (Leviathan et al. 2023, arXiv:2211.17192; Chen et al.
    2023, arXiv:2302.01318). Distinct siblings make it the recursive rejection sampling of RSD (Jeon
    et al. 2024, arXiv:2402.14160): after each rejection q loses the rejected token as well.
    Independent siblings make it the multi-step rule of SpecInfer (Miao et al. 2024,
    arXiv:2305.09781): q stays. Siblings of several drafters are tested in turn, each against the q
    that it was drawn from.
    """

    name: ClassVar[str] = "rejection"
    exact_for: ClassVar[frozenset[Draw]] = frozenset({"distinct", "independent", "named"})
    library_rule: ClassVar[Rule] = "rejection"

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
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
                drafted = q.chance(token)
                if drafted == 0.0:
                    continue
                if rng.accept(p.chance(token) / drafted):
                    break
                p = minus(p, q)
                if tree.draw == "distinct":
                    q = q.without(token)
            else:
                return Verdict(tree.path_to(alive[0]), p.draw(rng))
            alive = with_token(tree, candidates, token) if joins else [child]
