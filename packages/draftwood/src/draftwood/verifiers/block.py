"""A whole chain judged at once."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood.rng import Rng
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers.base import drawn, require_known
from draftwood.verifiers.rows import draft_row, left_over, target_row
from draftwood.verifiers.verifier import NodeProbs, Verdict


@dataclass(frozen=True)
class Block:
    """Keep the longest start of a chain that passes a test of its own.

    What happened to shorter ones does not matter. A start weighs w = min(1, w(one shorter) p/q):
    tokens the target likes better than the draft make up for others. Sun et al. 2025 (block
    verification, arXiv:2403.10444): no exact rule accepts more of a chain.

    Differs from the paper: tests run from the long end and stop at the first success, which is the
    same distribution. Chains of any length that depends only on the tokens before are allowed.
    """

    name: ClassVar[str] = "block"
    exact_for: ClassVar[frozenset[Draw]] = frozenset({"distinct", "independent"})

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        require_known(tree, target_probs)
        widest = max(len(children) for children in tree.children)
        if widest > 1:
            raise ValueError(
                f"block verification needs a chain, got a tree with {widest} children below one"
                " node; use Traversal, which is the same rule for trees"
            )
        nodes, weights = _weighted_chain(tree, target_probs)
        if rng.accept(weights[-1]):
            return Verdict(nodes[1:], drawn(target_probs, nodes[-1], rng))
        for place in reversed(range(len(nodes) - 1)):
            p, q = target_row(target_probs, nodes[place]), draft_row(tree, nodes[place + 1])
            rest, total = left_over(p, q, weights[place])
            if total > 0.0 and rng.accept(total / (total + (1.0 - weights[place]))):
                return Verdict(nodes[1 : place + 1], rest.draw(rng))
        # p = q at the root, so only rounding leads here
        return Verdict([], drawn(target_probs, 0, rng))


def _weighted_chain(tree: DraftTree, target_probs: NodeProbs) -> tuple[list[int], list[float]]:
    """Nodes from the root down and their weights, as far as anything can be accepted."""
    nodes, weights = [0], [1.0]
    while tree.is_drawn and weights[-1] > 0.0 and (children := tree.children[nodes[-1]]):
        token = tree.token_list[children[0]]
        drafted = draft_row(tree, children[0]).chance(token)
        if drafted == 0.0:
            break
        chance = target_row(target_probs, nodes[-1]).chance(token)
        weights.append(min(1.0, weights[-1] * chance / drafted))
        nodes.append(children[0])
    return nodes, weights
