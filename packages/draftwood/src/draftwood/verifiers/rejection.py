"""Rejection sampling: one draft token, or siblings drawn in any order from known rows."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood.native.step import Rule
from draftwood.rng import Rng
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers.rows import DraftRow, Row, reject_in_turn
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
        return reject_in_turn(tree, target_probs, rng, _chance)


def _chance(p: Row, q: DraftRow, token: int) -> float:
    return p.chance(token) / q.chance(token)
