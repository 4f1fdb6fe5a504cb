"""The likeliest nodes, where nodes that end alike share one run of the drafter."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from draftwood.native.rows import topk
from draftwood.rng import Rng
from draftwood.shapes import Expand
from draftwood.tree import DraftTree, Draw
from draftwood.validation import positive

LEAST_PROBABILITY = 1e-30  # so that its logarithm is finite


@dataclass(frozen=True)
class MergedGraph:
    """Best-first growth in which nodes whose newest tokens agree share one expansion.

    Graph-structured speculative decoding (Gong et al. 2024, arXiv:2407.16207). Draft branches often
    come back to the same words. The drafter runs the first node of those and what it says is taken
    to follow the others too, so that the drafter runs fewer rows for a tree of the same size. The
    target runs the tree as it is: of nodes that share, each has a place of its own. A node and what
    is below it never share. Without sharing it is the tree of ``BestFirst``.

    Differs from the paper: the target does not run the graph, whose shared nodes would see the text
    of one branch alone, but the tree that it stands for.

    Args:
        depth: levels to expand.
        width: leaves that are expanded on a level, and children of a node.
        size: most nodes to draft.
        agreeing: tokens that must agree for nodes to share; 0 shares nothing.

    Raises:
        ValueError: for a size below 1, and for fewer agreeing tokens than none.
    """

    name: ClassVar[str] = "merged-graph"
    depth: int = 4
    width: int = 4
    size: int = 16
    agreeing: int = 1

    def __post_init__(self) -> None:
        positive("depth, width and size", (self.depth, self.width, self.size))
        if self.agreeing < 0:
            raise ValueError(
                "agreeing must be the number of tokens that nodes have in common, or 0 to share"
                f" nothing, got {self.agreeing}"
            )

    @property
    def draw(self) -> Draw:
        return "chosen"

    @property
    def nodes(self) -> int:
        return self.size

    @property
    def label(self) -> str:
        return f"merged-graph {self.width}x{self.depth}, keep {self.size}, {self.agreeing} agreeing"

    def grow(
        self, root: int, expand: Expand, rng: Rng, max_draft_len: int = sys.maxsize
    ) -> DraftTree:
        grown = _Grown([root])
        leaves = [0]
        for _ in range(min(self.depth, max_draft_len)):
            self._run(grown, leaves, expand)
            first = len(grown.tokens)
            for leaf in leaves:
                grown.branch(leaf, self.width)
            new = range(first, len(grown.tokens))
            leaves = sorted(sorted(new, key=lambda node: -grown.scores[node])[: self.width])
        order = sorted(range(1, len(grown.tokens)), key=lambda node: -grown.scores[node])
        kept = [0, *sorted(order[: self.size])]
        return DraftTree.of(grown.tokens, grown.parents).keep(kept)

    def _run(self, grown: "_Grown", leaves: Sequence[int], expand: Expand) -> None:
        """Give every leaf its row: one that is known already, or the drafter's."""
        first = len(grown.run)
        for leaf in leaves:
            ending = self.ending(grown.path(leaf))
            known = None if ending is None else grown.known.get(ending)
            if known is None or known in grown.ancestors(leaf):
                grown.place[leaf] = len(grown.run)
                grown.run.append(leaf)
                if ending is not None:
                    grown.known.setdefault(ending, leaf)
            else:
                grown.place[leaf] = grown.place[known]
        if len(grown.run) > first:
            grown.add_rows(expand(grown.drafted(), first), self.width)

    def ending(self, path: Sequence[int]) -> tuple[int, ...] | None:
        """Tokens that must agree for two nodes to share; None where the path is too short.

        Args:
            path: tokens from the root to a node.
        """
        if not 0 < self.agreeing <= len(path):
            return None
        return tuple(path[len(path) - self.agreeing :])


@dataclass(eq=False)
class _Grown:
    """A tree that still grows, and the smaller tree that the drafter runs for it.

    Attributes:
        tokens: of every node, as the lists that follow.
        scores: logarithm of the product of the path's probabilities.
        place: the node's place among those that the drafter ran, or that of the node with which it
            shares; for expanded nodes.
        run: nodes that the drafter ran, in order.
        known: by what must agree, the first node that the drafter ran.
        rows: likeliest tokens of each node that ran and the logarithms of their probabilities.
    """

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    scores: list[float] = field(default_factory=lambda: [0.0])
    place: dict[int, int] = field(default_factory=dict)
    run: list[int] = field(default_factory=list)
    known: dict[tuple[int, ...], int] = field(default_factory=dict)
    rows: list[list[tuple[int, float]]] = field(default_factory=list)

    def ancestors(self, node: int) -> list[int]:
        """The node and what is above it, from the root down."""
        found = []
        while node >= 0:
            found.append(node)
            node = self.parents[node]
        return found[::-1]

    def path(self, node: int) -> list[int]:
        """Tokens from the root to a node."""
        return [self.tokens[each] for each in self.ancestors(node)]

    def drafted(self) -> DraftTree:
        """The tree that the drafter runs: a node hangs below the one its parent shares with."""
        parents = [self.parents[node] for node in self.run]
        return DraftTree.of(
            [self.tokens[node] for node in self.run],
            [-1 if parent < 0 else self.place[parent] for parent in parents],
        )

    def add_rows(self, probs: Float[np.ndarray, "nodes vocab"], width: int) -> None:
        best = topk(probs, min(width, probs.shape[-1]))
        chances = np.take_along_axis(probs, best, -1).astype(np.float32)
        values = np.log(chances.clip(LEAST_PROBABILITY, 1.0)).tolist()
        for tokens, logs in zip(best.tolist(), values, strict=True):
            self.rows.append(list(zip(tokens, logs, strict=True)))

    def branch(self, node: int, width: int) -> None:
        """Give a node the children that its row names."""
        for token, log_prob in self.rows[self.place[node]][:width]:
            self.tokens.append(token)
            self.parents.append(node)
            self.scores.append(self.scores[node] + log_prob)
