"""A chain that goes on as long as its drafter lets it."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from draftwood.arrays import as_array
from draftwood.rng import Rng
from draftwood.shapes import Expand
from draftwood.tree import DraftTree
from draftwood_methods.shapes.base import EndingChain


def open_gate(node: int) -> bool:
    """Let every node have a child."""
    return True


@dataclass(frozen=True)
class Gated(EndingChain):
    """Draw a chain that ends below the first node at which ``gate`` is closed.

    The gate is asked once the drafter ran the node, and before a child is drawn. What it says must
    follow from the node, its ancestors and their rows alone; then rejection keeps the target's
    distribution, as in ``until``.

    Args:
        length: most draft tokens.
        gate: given a node's number, whether it has a child. Drafters give their own.

    Raises:
        ValueError: for a length below 1.
    """

    name: ClassVar[str] = "gated"
    gate: Callable[[int], bool] = field(default=open_gate, repr=False)  # an address, in records

    @property
    def label(self) -> str:
        return f"gated, at most {self.length}"

    def grow(
        self, root: int, expand: Expand, rng: Rng, max_draft_len: int = sys.maxsize
    ) -> DraftTree:
        tree, rows = DraftTree.of([root], [-1], self.draw), []
        while len(rows) < min(self.length, max_draft_len):
            row = as_array(expand(tree, len(rows)))
            if not self.gate(len(rows)):
                break
            token = int(rng.draw_distinct(row, 1)[0, 0])
            rows.append(row)
            tree = DraftTree.chain([*tree.token_list, token], self.draw)
        probs = np.concatenate(rows) if rows else None
        return DraftTree(tree.tokens, tree.parents, probs, self.draw)
