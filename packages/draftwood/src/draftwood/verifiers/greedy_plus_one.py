"""The likeliest siblings for certain, one more by chance."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood.rng import Rng
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers.base import require_known, residual, without
from draftwood.verifiers.verifier import NodeProbs, Verdict


@dataclass(frozen=True)
class GreedyPlusOne:
    """Test the last sibling, which alone was drawn.

    What is left of p falls on the others by itself. The siblings before it are certain, so the
    proposal is q without them. A lone child is speculative sampling. Hu et al. 2025
    (arXiv:2502.18779): no other rule accepts more on siblings drawn this way, and it comes close to
    the best rule for distinct ones.

    Differs from the paper: the rule is written as speculative sampling from q without the certain
    tokens, which attains the same optimum in one test.
    """

    name: ClassVar[str] = "greedy-plus-one"
    exact_for: ClassVar[frozenset[Draw]] = frozenset({"greedy-plus-one"})

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        require_known(tree, target_probs)
        node = 0
        while True:
            children, p = tree.children[node], target_probs[node]
            if not children or tree.probs is None:
                return Verdict(tree.path_to(node), rng.draw(p))
            q = tree.probs[node]
            *certain, last = (tree.token_list[child] for child in children)
            left = without(q, certain)
            if left[last] == 0.0:  # q had nothing left to draw the last one from
                token = rng.draw(p)
            elif rng.accept(float(p[last]) / float(left[last])):
                token = last
            else:
                token = rng.draw(residual(p, left))
            agreeing = [
                child for child in children if tree.token_list[child] == token and q[token] > 0.0
            ]
            if not agreeing:
                return Verdict(tree.path_to(node), token)
            node = agreeing[0]
