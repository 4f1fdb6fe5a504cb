"""A chain of the tokens that the target will draw if it agrees with the drafter."""

import sys
from dataclasses import dataclass, replace
from typing import ClassVar

from draftwood.arrays import as_array
from draftwood.rng import Rng
from draftwood.shapes import Expand, Shape
from draftwood.tree import DraftTree, Draw
from draftwood_methods.shapes.base import EndingChain


@dataclass(frozen=True)
class RacedChain(EndingChain):
    """Draw a chain with the random numbers that the target draws with behind it. For matching.

    Daliri et al. 2024 (arXiv:2408.07978). A token that was drawn with other numbers is the target's
    with chance sum(p q); with the same ones it is so nearly as often as rejection accepts, with at
    least (1 - d) / (1 + d) where the distributions are d apart in total variation.

    Args:
        length: draft tokens.

    Raises:
        ValueError: for a length below 1.
    """

    name: ClassVar[str] = "raced"
    length: int = 4

    @property
    def draw(self) -> Draw:
        return "coupled"

    @property
    def label(self) -> str:
        return f"raced, {self.length}"

    def with_length(self, length: int) -> Shape:
        return replace(self, length=length)

    def grow(
        self, root: int, expand: Expand, rng: Rng, max_draft_len: int = sys.maxsize
    ) -> DraftTree:
        tree = DraftTree.of([root], [-1], self.draw)
        for level in range(min(self.length, max_draft_len)):
            row = as_array(expand(tree, level))[0]
            tree = DraftTree.chain([*tree.token_list, rng.foresee(row, level)], self.draw)
        return tree
