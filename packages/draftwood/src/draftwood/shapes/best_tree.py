"""The dynamic programme of Sequoia: numbers alone, without a model."""

from collections.abc import Sequence
from math import inf

import numpy as np


def plan(
    acceptance: Sequence[float],
    budget: int,
    depth: int,
    draft_cost: float = 0.0,
    target_cost: Sequence[float] = (),
) -> list[tuple[int, ...]]:
    """Rank paths of the tree with the most expected tokens, per cost where costs are given."""
    table = _Table(acceptance, budget + 1, depth)
    levels = range(1, min(depth, table.deepest) + 1)
    sizes = [(nodes, deep) for nodes in range(2, budget + 2) for deep in levels]

    def worth(size: tuple[int, int]) -> tuple[float, int]:
        nodes, deep = size
        tokens = table.best(nodes, deep)[0]
        if not target_cost:  # the whole budget, also where more nodes bring less than a float tells
            return tokens, nodes
        return tokens / (deep * draft_cost + target_cost[nodes - 1]), 0

    return table.paths(*max(sizes, key=worth), ())


class _Table:
    """Best subtrees by number of nodes, levels below the top, and exact children of the top.

    The number of nodes includes the top. A subtree with b children is one with b - 1 children and
    fewer nodes, plus a last child that takes the others.

    Attributes:
        deepest: levels above which no subtree gets better.
    """

    def __init__(self, acceptance: Sequence[float], nodes: int, depth: int) -> None:
        self.ranks = len(acceptance)
        alone = np.full((nodes + 1, self.ranks + 1), -inf)
        alone[1, 0] = 1.0
        # expected emitted tokens, and nodes of the last child's subtree, at [nodes children]
        self.values, self.lasts = [alone], [np.zeros(alone.shape, np.int64)]
        self.bests = [alone.max(1)]
        for _ in range(depth):
            values, lasts = alone.copy(), np.zeros(alone.shape, np.int64)
            known = np.maximum(self.bests[-1], 0.0)
            for children, chance in enumerate(acceptance, 1):
                below = np.where(self.bests[-1] > -inf, chance * known, -inf)
                # nodes of all but the last child's subtree; equal sums leave it the most
                for rest in np.flatnonzero(values[:nodes, children - 1] > -inf)[::-1]:
                    found = values[rest, children - 1] + below[1 : nodes + 1 - rest]
                    better = found >= values[rest + 1 :, children]
                    values[rest + 1 :, children][better] = found[better]
                    lasts[rest + 1 :, children][better] = np.flatnonzero(better) + 1
            self.values.append(values)
            self.lasts.append(lasts)
            self.bests.append(values.max(1))
            if np.array_equal(self.bests[-1], self.bests[-2]):
                break
        self.deepest = len(self.bests) - 1

    def best(self, nodes: int, levels: int) -> tuple[float, int]:
        """Most expected tokens and the number of children that give them.

        Minus infinity for too flat a tree.
        """
        return float(self.bests[levels][nodes]), int(self.values[levels][nodes].argmax())

    def paths(self, nodes: int, levels: int, above: tuple[int, ...]) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for rank in range(self.best(nodes, levels)[1] - 1, -1, -1):
            last = int(self.lasts[levels][nodes, rank + 1])
            found += [above + (rank,), *self.paths(last, levels - 1, above + (rank,))]
            nodes -= last
        return found
