"""Best tree for given acceptance rates of ranks and costs of nodes."""

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import ClassVar

from draftwood.rng import Rng
from draftwood.shapes.base import ExpandLogits, Level, Picked, RowsAfter, grow_by_levels, levels_of
from draftwood.shapes.best_tree import plan
from draftwood.tree import UNBOUNDED, DraftTree, Draw
from draftwood.validation import positive


@dataclass(frozen=True)
class Sequoia:
    """A fixed tree found by dynamic programming, its siblings drawn without replacement.

    Chen et al. 2024, arXiv:2402.12374. The plan depends on measured numbers only, never on drawn
    tokens.

    Args:
        acceptance: probability that the b-th child is the accepted one, given that its parent is
            reached; measured by a benchmark. Its length bounds the children of a node.
        budget: most nodes to draft.
        max_depth: most levels.
        draft_cost: seconds (or any unit) to draft one level; counts beside ``target_cost`` alone.
        target_cost: cost of a forward pass of the target by number of nodes, the root included:
            entry n - 1 for n nodes. The size with the best expected tokens per cost is taken;
            empty takes the whole budget.

    Raises:
        ValueError: for acceptance that is no probabilities, and costs that are none.
    """

    name: ClassVar[str] = "sequoia"
    takes_logits: ClassVar[bool] = True
    acceptance: tuple[float, ...] = (0.6, 0.15, 0.07, 0.04, 0.03, 0.02, 0.01, 0.01)
    budget: int = 16
    max_depth: int = 6
    draft_cost: float = 0.0
    target_cost: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        positive("budget and max_depth", (self.budget, self.max_depth))
        if not self.acceptance or not (
            min(self.acceptance) >= 0 and sum(self.acceptance) <= 1 + 1e-9
        ):
            raise ValueError(
                f"acceptance must hold probabilities that sum to at most 1, got {self.acceptance}"
            )
        if self.target_cost and len(self.target_cost) < self.budget + 1:
            raise ValueError(
                f"target_cost must cover trees of up to {self.budget + 1} nodes, root included"
            )
        if not all(0 < each < inf for each in self.target_cost) or not 0 <= self.draft_cost < inf:
            raise ValueError("target_cost must be above 0, draft_cost at least 0, and both finite")
        if self.draft_cost and not self.target_cost:
            raise ValueError("draft_cost needs target_cost, beside which it counts")

    @property
    def draw(self) -> Draw:
        return "distinct"

    @property
    def nodes(self) -> int:
        return len(self.paths)

    @property
    def depth(self) -> int:
        return len(self.levels)

    @property
    def label(self) -> str:
        return f"sequoia {'-'.join(str(len(level.ranks)) for level in self.levels)}"

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Rank paths of the planned tree."""
        return tuple(
            plan(self.acceptance, self.budget, self.max_depth, self.draft_cost, self.target_cost)
        )

    @cached_property
    def levels(self) -> list[Level]:
        return levels_of(self.paths)

    def grow(
        self, root: int, expand: ExpandLogits, rng: Rng, max_draft_len: int = UNBOUNDED
    ) -> DraftTree:
        above: list[int | None] = [0]

        def pick(level: int, rows: RowsAfter) -> Picked:
            wanted = self.levels[level]
            # a vocabulary may be smaller than the plan's widest node
            count = min(max(wanted.ranks) + 1, rows.shape[-1])
            return wanted.pick(above, rng.draw_children(rows, count).tokens)

        return grow_by_levels(
            root, expand, min(len(self.levels), max_draft_len), pick, "distinct", None
        )
