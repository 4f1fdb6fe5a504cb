"""Most probable nodes of a tree, at any depth."""

from dataclasses import dataclass
from math import exp, log
from typing import ClassVar

from draftwood.arrays import as_array
from draftwood.rng import Rng
from draftwood.shapes.base import ExpandLogits, RowsAfter, likeliest
from draftwood.tree import UNBOUNDED, DraftTree, Draw
from draftwood.validation import positive

LEAST = 1e-30  # below it a chance counts as this much


@dataclass(frozen=True)
class BestFirst:
    """Expand the ``width`` most probable leaves ``depth`` times; keep the ``size`` best nodes.

    EAGLE-2 (Li et al. 2024, arXiv:2406.16858). A node's likelihood is the product of its path's
    probabilities under the drafter, never above its parent's, so the kept nodes are connected.

    Differs from the paper: leaves less likely than ``floor`` are not expanded, and without any
    other the tree ends early; 0 expands all.
    """

    name: ClassVar[str] = "best-first"
    takes_logits: ClassVar[bool] = True
    depth: int = 4
    width: int = 4
    size: int = 16
    floor: float = 0.0

    def __post_init__(self) -> None:
        positive("depth, width and size", (self.depth, self.width, self.size))
        if not 0.0 <= self.floor < 1.0:
            raise ValueError(f"floor must be a probability below 1, got {self.floor}")

    def __repr__(self) -> str:
        """Its settings; records of trees without a floor do not name it."""
        floor = f", floor={self.floor}" if self.floor else ""
        return f"BestFirst(depth={self.depth}, width={self.width}, size={self.size}{floor})"

    @property
    def draw(self) -> Draw:
        return "chosen"

    @property
    def nodes(self) -> int:
        return self.size

    @property
    def label(self) -> str:
        above = f", above {self.floor:g}" if self.floor else ""
        return f"best-first {self.width}x{self.depth}, keep {self.size}{above}"

    def grow(
        self, root: int, expand: ExpandLogits, rng: Rng, max_draft_len: int = UNBOUNDED
    ) -> DraftTree:
        depth, tree = min(self.depth, max_draft_len), DraftTree.of([root], [-1])
        if depth < 1:
            return tree
        grown = _Candidates(root)
        grown.take(as_array(expand(tree, 0)), self.width)
        for _ in range(depth - 1):
            expanded, leaves = grown.next_level(self.width, self.floor)
            if not leaves:
                break
            grown.take(as_array(expand(expanded, len(expanded) - leaves)), self.width)
        return grown.best(self.size)


class _Candidates:
    """Candidates of one tree.

    Attributes:
        tokens, parents, scores: of every node seen; scores are log-probabilities of paths.
        places: of these the places in the tree that the drafter expands, where they are in it.
        leaves: candidates at the frontier.
        newest: candidates below the frontier.
    """

    def __init__(self, root: int) -> None:
        self.tokens, self.parents, self.scores = [root], [-1], [0.0]
        self.expanded = DraftTree.of([root], [-1])
        self.places, self.leaves, self.newest = {0: 0}, [0], range(0)

    def take(self, rows: RowsAfter, width: int) -> None:
        """Add the likeliest children of the frontier."""
        found, first = likeliest(rows, min(width, rows.shape[-1])), len(self.tokens)
        for leaf, tokens, chances in zip(self.leaves, *found, strict=True):
            self.tokens += tokens
            self.parents += [leaf] * len(tokens)
            self.scores += [self.scores[leaf] + log(max(chance, LEAST)) for chance in chances]
        self.newest = range(first, len(self.tokens))

    def next_level(self, width: int, floor: float) -> tuple[DraftTree, int]:
        """The tree to expand, and how many of its nodes are new: the best at the frontier."""
        likely = [node for node in self.newest if exp(self.scores[node]) >= floor]
        best = sorted(likely, key=self.scores.__getitem__, reverse=True)
        self.leaves, first = sorted(best[:width]), len(self.expanded)
        self.places |= {leaf: place for place, leaf in enumerate(self.leaves, first)}
        self.expanded = DraftTree.of(
            [*self.expanded.token_list, *(self.tokens[leaf] for leaf in self.leaves)],
            [
                *self.expanded.parent_list,
                *(self.places[self.parents[leaf]] for leaf in self.leaves),
            ],
        )
        return self.expanded, len(self.leaves)

    def best(self, size: int) -> DraftTree:
        """The best candidates; of equal ones the earlier, hence the parent."""
        every = range(1, len(self.tokens))
        kept = [0, *sorted(sorted(every, key=self.scores.__getitem__, reverse=True)[:size])]
        place = {node: number for number, node in enumerate(kept)}
        return DraftTree.of(
            [self.tokens[node] for node in kept],
            [-1, *(place[self.parents[node]] for node in kept[1:])],
        )
