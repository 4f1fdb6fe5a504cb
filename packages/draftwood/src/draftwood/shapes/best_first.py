"""Most probable nodes of a tree, at any depth."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from draftwood.rng import Rng
from draftwood.shapes.shape import Expand
from draftwood.tree import UNBOUNDED, DraftTree, Draw
from draftwood.validation import positive


@dataclass(frozen=True)
class BestFirst:
    """Expand the ``width`` most probable leaves ``depth`` times; keep the ``size`` best nodes.

    EAGLE-2 (Li et al. 2024, arXiv:2406.16858). A node's likelihood is the product of its path's
    probabilities under the drafter, never above its parent's, so the kept nodes are connected.

    Differs from the paper: leaves less likely than ``floor`` are not expanded, and without any
    other the tree ends early; 0 expands all.
    """

    name: ClassVar[str] = "best-first"
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
        self, root: int, expand: Expand, rng: Rng, max_draft_len: int = UNBOUNDED
    ) -> DraftTree:
        candidates = DraftTree.of([root], [-1])  # every node seen
        expanded = candidates  # those the drafter expanded
        scores = torch.zeros(1, dtype=torch.float32)  # of all candidates
        # candidates at the frontier, in their order in `expanded`
        leaves = torch.tensor([0])
        depth = min(self.depth, max_draft_len)
        for level in range(depth):
            probs = expand(expanded, len(expanded) - len(leaves))
            best = probs.topk(min(self.width, probs.shape[-1]), dim=-1)
            device, fan = probs.device, best.values.shape[-1]
            leaves, scores = (
                leaves.to(device, non_blocking=True),
                scores.to(device, non_blocking=True),
            )
            values = (scores[leaves, None] + best.values.float().clamp(min=1e-30).log()).flatten()
            first = len(candidates)
            candidates = DraftTree(
                torch.cat(
                    [candidates.tokens.to(device, non_blocking=True), best.indices.flatten()]
                ),
                torch.cat(
                    [
                        candidates.parents.to(device, non_blocking=True),
                        leaves.repeat_interleave(fan),
                    ]
                ),
            )
            scores = torch.cat([scores, values])
            if level + 1 == depth:
                break
            chosen = values.topk(min(self.width, len(values))).indices.sort().values
            if self.floor:  # looking at values waits for a device
                chosen = chosen[values[chosen] >= math.log(self.floor)]
                if not len(chosen):
                    break
            above = len(expanded) - len(leaves)
            expanded = DraftTree(
                torch.cat(
                    [expanded.tokens.to(device, non_blocking=True), best.indices.flatten()[chosen]]
                ),
                torch.cat([expanded.parents.to(device, non_blocking=True), above + chosen // fan]),
            )
            leaves = first + chosen
        scores[0] = torch.inf
        # of equal nodes the earlier, hence the parent
        order = scores.sort(descending=True, stable=True).indices
        return candidates.keep(order[: self.size + 1].sort().values)
