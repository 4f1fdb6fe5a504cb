"""The likeliest siblings for certain, one more by chance."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood.rng import Rng
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers.base import drawn, require_known
from draftwood.verifiers.rows import draft_row, minus, target_row
from draftwood.verifiers.verifier import NodeProbs, Verdict


@dataclass(frozen=True)
class GreedyPlusOne:
    """Test the last sibling, which alone was drawn.

    What is left of p falls on the others by itself. The siblings before it are certain, so the
    proposal is q without them. A lone child is speculative sampling. Hu et al. 2025
    (arXiv:2502.18779): no other rule accepts more on siblings drawn this way. Where q is peaked it
    comes close to the best rule for distinct ones; where it is flat, recursive rejection accepts
    more.

    Differs from the paper: the rule is written as speculative sampling from q without the certain
    tokens, which attains the same optimum in one test.
    """

    name: ClassVar[str] = "greedy-plus-one"
    exact_for: ClassVar[frozenset[Draw]] = frozenset({"greedy-plus-one"})

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        require_known(tree, target_probs)
        node = 0
        while True:
            children = tree.children[node]
            if not children or not tree.is_drawn:
                return Verdict(tree.path_to(node), drawn(target_probs, node, rng))
            p, q = target_row(target_probs, node), draft_row(tree, children[0])
            *certain, last = (tree.token_list[child] for child in children)
            left = q
            for each in certain:
                left = left.without(each)
            if left.chance(last) == 0.0:  # q had nothing left to draw the last one from
                token = p.draw(rng)
            elif rng.accept(p.chance(last) / left.chance(last)):
                token = last
            else:
                token = minus(p, left).draw(rng)
            agreeing = [child for child in children if tree.token_list[child] == token]
            if not agreeing or q.chance(token) == 0.0:
                return Verdict(tree.path_to(node), token)
            node = agreeing[0]
