"""A fixed tree of ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from draftwood.arrays import Int
from draftwood.rng import Rng
from draftwood.shapes.base import (
    ExpandLogits,
    Level,
    Picked,
    RowsAfter,
    grow_by_levels,
    levels_of,
    likeliest,
    require_budget,
)
from draftwood.tree import UNBOUNDED, DraftTree, Draw


@dataclass(frozen=True)
class Paths:
    """Draw the same tree every time, given by a path of ranks for each node.

    (0, 2) is the third most probable token after the most probable one.

    Medusa (Cai et al. 2024, arXiv:2401.10774) and Token Recycling (Luo et al. 2024,
    arXiv:2408.08696) use such trees.

    Args:
        paths: every node of the tree, the root excluded.
        budget: nodes to keep, those of small ranks near the root first.

    Raises:
        ValueError: if a node's parent or elder sibling is missing.
    """

    name: ClassVar[str] = "paths"
    takes_logits: ClassVar[bool] = True
    paths: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
    budget: int | None = None

    def __post_init__(self) -> None:
        levels_of(self.paths)
        require_budget(self.budget)

    @property
    def draw(self) -> Draw:
        return "chosen"

    @property
    def nodes(self) -> int:
        return len(self.paths) if self.budget is None else min(len(self.paths), self.budget)

    @property
    def depth(self) -> int:
        return len(self.levels)

    @property
    def label(self) -> str:
        return f"paths {'-'.join(str(len(level.ranks)) for level in self.levels)}"

    @cached_property
    def levels(self) -> list[Level]:
        # a parent and an elder sibling always have a smaller sum, so any beginning of this order is
        # a tree
        return levels_of(
            sorted(self.paths, key=lambda path: (sum(path) + len(path), path))[: self.nodes]
        )

    @cached_property
    def _places(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Parents and ranks of each level as arrays."""
        return [(np.array(level.parents), np.array(level.ranks)) for level in self.levels]

    def grow(
        self, root: int, expand: ExpandLogits, rng: Rng, max_draft_len: int = UNBOUNDED
    ) -> DraftTree:
        above: list[int | None] = [0]

        def pick(level: int, rows: RowsAfter) -> Picked:
            wanted = self.levels[level]
            return wanted.pick(above, likeliest(rows, max(wanted.ranks) + 1).tokens)

        return grow_by_levels(
            root, expand, min(len(self.levels), max_draft_len), pick, "chosen", None
        )

    def fill(
        self,
        root: int,
        successors: Callable[[np.ndarray], Int[np.ndarray, "nodes ranks"]],
        max_draft_len: int = UNBOUNDED,
    ) -> DraftTree:
        """Fill the tree with tokens from a table of ranked successors.

        Args:
            root: token of the root.
            successors: for tokens [nodes], the tokens that may follow each, best first, -1 where
                none is known; nodes without a token are left out, and so is what would be below
                them.
            max_draft_len: most nodes in a row.
        """
        tokens, parents, first = [np.array([root])], [np.array([-1])], 0
        for place, ranks in self._places[:max_draft_len]:
            above = tokens[-1]
            known = np.where(above[:, None] < 0, -1, successors(above.clip(min=0)))
            tokens.append(known[place, ranks])
            parents.append(place + first)
            first += len(above)
        return _without_gaps(np.concatenate(tokens), np.concatenate(parents))


def _without_gaps(
    tokens: Int[np.ndarray, " nodes"], parents: Int[np.ndarray, " nodes"]
) -> DraftTree:
    tree = DraftTree(tokens, parents)
    return tree if bool((tokens >= 0).all()) else tree.keep(np.flatnonzero(tokens >= 0))
