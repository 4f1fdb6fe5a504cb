"""Most probable nodes of a tree, at any depth."""

from dataclasses import dataclass
from math import exp, log
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.native.logit_rows import LogitRows
from draftwood.rng import Rng
from draftwood.shapes.base import longer
from draftwood.shapes.shape import ExpandLogits
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
        first: Any = expand(tree, 0)  # whose kind is that of all others
        grown: Any = _Candidates(root) if isinstance(first, LogitRows) else _CandidateTensors(root)
        grown.take(first, self.width)
        for _ in range(depth - 1):
            expanded, leaves = grown.next_level(self.width, self.floor)
            if not leaves:
                break
            grown.take(expand(expanded, len(expanded) - leaves), self.width)
        return grown.best(self.size)


class _Candidates:
    """Candidates of one tree that is grown from ``LogitRows``.

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

    def take(self, rows: LogitRows, width: int) -> None:
        """Add the likeliest children of the frontier."""
        found, first = rows.likeliest(min(width, rows.shape[-1])), len(self.tokens)
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


class _CandidateTensors:
    """The same from tensors, without waiting for their device."""

    def __init__(self, root: int) -> None:
        self.candidates = self.expanded = DraftTree.of([root], [-1])
        self.scores = torch.zeros(1, dtype=torch.float32)
        self.leaves, self.fan, self.newest = torch.tensor([0]), 0, 0

    def take(self, probs: Float[Tensor, "leaves vocab"], width: int) -> None:
        best = probs.topk(min(width, probs.shape[-1]), dim=-1)
        device, self.fan = probs.device, best.values.shape[-1]
        leaves = self.leaves.to(device, non_blocking=True)
        scores = self.scores.to(device, non_blocking=True)
        values = (scores[leaves, None] + best.values.float().clamp(min=LEAST).log()).flatten()
        above, self.newest = self.candidates, len(self.candidates)
        parents = leaves.repeat_interleave(self.fan)
        self.candidates = longer(above, best.indices.flatten(), parents, 0)
        self.scores = torch.cat([scores, values])

    def next_level(self, width: int, floor: float) -> tuple[DraftTree, int]:
        values = self.scores[self.newest :]
        chosen = values.topk(min(width, len(values))).indices.sort().values
        if floor:  # looking at values waits for a device
            chosen = chosen[values[chosen] >= log(floor)]
        above = len(self.expanded) - len(self.leaves)
        tokens = self.candidates.tokens[self.newest :][chosen]
        self.expanded = longer(self.expanded, tokens, chosen // self.fan, above)
        self.leaves = self.newest + chosen
        return self.expanded, len(chosen)

    def best(self, size: int) -> DraftTree:
        self.scores[0] = torch.inf
        # of equal nodes the earlier, hence the parent
        order = self.scores.sort(descending=True, stable=True).indices
        return self.candidates.keep(order[: size + 1].sort().values)
