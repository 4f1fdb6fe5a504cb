"""A fixed number of children for every node of a level; a chain is the narrowest such tree."""

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal, get_args

import numpy as np

from draftwood.arrays import Float, Int
from draftwood.native.drawn_trees import DrawnShape
from draftwood.native.rows import topk
from draftwood.rng import Rng
from draftwood.shapes.base import (
    ExpandLogits,
    Picked,
    RowsAfter,
    as_probs,
    grow_by_levels,
    require_budget,
    within,
)
from draftwood.tree import UNBOUNDED, DraftTree
from draftwood.validation import positive

SiblingDraw = Literal["distinct", "independent", "greedy-plus-one"]


@dataclass(frozen=True)
class Widths:
    """Give every node at depth d ``widths[d]`` children. (1, 1, 1) is a chain of three.

    Drawn without replacement this is RSD-C (Jeon et al. 2024, arXiv:2402.14160), drawn
    independently the expansion tree of SpecInfer (Miao et al. 2024, arXiv:2305.09781), drawn
    greedy-plus-one the draft that Hu et al. (2025) pair with their verifier.

    Args:
        widths: children per node, level by level.
        draw: how siblings are drawn.
        budget: most nodes to draft; None for all.
    """

    name: ClassVar[str] = "widths"
    takes_logits: ClassVar[bool] = True
    widths: tuple[int, ...] = (1, 1, 1, 1)
    draw: SiblingDraw = "distinct"
    budget: int | None = None

    def __post_init__(self) -> None:
        positive("widths", self.widths)
        require_budget(self.budget)
        if self.draw not in get_args(SiblingDraw):
            raise ValueError(f"draw is {' or '.join(get_args(SiblingDraw))}, not {self.draw!r}")
        if self.draw == "greedy-plus-one" and self.budget is not None:
            raise ValueError(
                "a budget would cut off the drawn sibling that greedy-plus-one ends with; use none"
            )

    @property
    def nodes(self) -> int:
        return self._nodes_above(len(self.widths))

    @property
    def depth(self) -> int:
        levels = range(len(self.widths))
        if self.budget is None:
            return len(levels)
        return sum(self._nodes_above(level) < self.budget for level in levels)

    @property
    def label(self) -> str:
        how = "" if self.draw == "distinct" else f", {self.draw}"
        return f"widths {'-'.join(map(str, self.widths))}{within(self.budget)}{how}"

    @property
    def drawn_shape(self) -> DrawnShape | None:
        if self.draw == "greedy-plus-one":
            return None
        return DrawnShape(self.widths, self.nodes, self.draw)

    def _nodes_above(self, levels: int) -> int:
        """Drafted nodes on so many levels from the top."""
        every = sum(prod(self.widths[: level + 1]) for level in range(levels))
        return every if self.budget is None else min(every, self.budget)

    def grow(
        self, root: int, expand: ExpandLogits, rng: Rng, max_draft_len: int = UNBOUNDED
    ) -> DraftTree:
        def pick(level: int, rows: RowsAfter) -> Picked:
            width = min(self.widths[level], rows.shape[-1])
            if self.draw == "greedy-plus-one":
                drawn = _greedy_plus_one(as_probs(rows), width, rng).tolist()
            else:
                drawn = rng.draw_children(rows, width, self.draw != "independent").tokens
            parents = [node for node in range(len(drawn)) for _ in range(width)]
            return [token for children in drawn for token in children], parents

        return grow_by_levels(
            root, expand, min(len(self.widths), max_draft_len), pick, self.draw, self.budget
        )


def _greedy_plus_one(
    probs: Float[np.ndarray, "rows vocab"], width: int, rng: Rng
) -> Int[np.ndarray, "rows {width}"]:
    if width == 1:
        return rng.draw_distinct(probs, 1)
    top, rest = topk(probs, width - 1), probs.copy()
    np.put_along_axis(rest, top, 0.0, -1)
    return np.concatenate([top, rng.draw_distinct(rest, 1)], axis=-1)
