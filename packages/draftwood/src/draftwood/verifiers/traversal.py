"""A whole tree judged from its leaves up."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood.native.step import Rule
from draftwood.rng import Rng
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers.base import require_known, with_token
from draftwood.verifiers.rows import DraftRow, Row, draft_row, left_over, target_row
from draftwood.verifiers.verifier import NodeProbs, Verdict


@dataclass(frozen=True)
class Traversal:
    """Test the first leaf with its whole path; if it fails delete it and go on.

    A parent is tested after all its children. A path weighs w = min(1, w(parent) p/q), so tokens
    the target likes better than the draft make up for others. A deleted child is taken off p and q
    of its parent, whose weight falls. Weng et al. 2025 (Traversal Verification, arXiv:2505.12398):
    on a chain it is block verification.

    Differs from the paper: weights are computed on the way down, and below a path of weight 0
    nothing is looked at. Independent siblings that drew the same token share their children, which
    keeps the distribution and accepts more.
    """

    name: ClassVar[str] = "traversal"
    exact_for: ClassVar[frozenset[Draw]] = frozenset({"distinct", "independent"})
    library_rule: ClassVar[Rule] = "traversal"

    def __call__(self, tree: DraftTree, target_probs: NodeProbs, rng: Rng) -> Verdict:
        require_known(tree, target_probs)
        path = [_Open(tree, target_probs, [0], 1.0)]
        while True:
            newest = path[-1]
            if newest.waiting:
                child = newest.waiting.pop(0)
                weight = newest.weight_of(child)
                if weight is None:  # a token that q cannot draw is no draft
                    continue
                if weight > 0.0:
                    path.append(_Open(tree, target_probs, newest.siblings_like(child), weight))
                else:
                    newest.delete(child)
            elif len(path) == 1 or rng.accept(newest.weight):
                return Verdict(tree.path_to(newest.node), newest.p.draw(rng))
            else:
                path.pop()
                path[-1].delete(newest.node)


class _Open:
    """A node on the path under test.

    It holds what is left of its children, its weight and its distributions. ``nodes`` are the
    siblings that hold its token, those with children first.
    """

    def __init__(
        self, tree: DraftTree, target_probs: NodeProbs, nodes: list[int], weight: float
    ) -> None:
        self.node, self.weight = nodes[0], weight
        self._tree, self._target_probs = tree, target_probs
        self._children: list[int] = []
        self._p: Row | None = None
        self._q: DraftRow | None = None
        if tree.is_drawn:
            self._children = [child for node in nodes for child in tree.children[node]]
        if self._children:
            self._q = draft_row(tree, tree.children[self.node][0])
        self.waiting = list(self._children)

    @property
    def p(self) -> Row:
        if self._p is None:  # a leaf that fails never needs it
            self._p = target_row(self._target_probs, self.node)
        return self._p

    @property
    def q(self) -> DraftRow:
        assert self._q is not None, "it is asked for where there are children"
        return self._q

    def weight_of(self, child: int) -> float | None:
        token = self._tree.token_list[child]
        drafted = self.q.chance(token)
        return None if drafted == 0.0 else min(1.0, self.weight * self.p.chance(token) / drafted)

    def siblings_like(self, child: int) -> list[int]:
        if self._tree.draw != "independent":
            return [child]
        return with_token(self._tree, self._children, self._tree.token_list[child])

    def delete(self, child: int) -> None:
        self._p, total = left_over(self.p, self.q, self.weight)
        self.weight = total / (total + (1.0 - self.weight)) if total > 0.0 else 0.0
        if self._tree.draw == "distinct":
            self._q = self.q.without(self._tree.token_list[child])
