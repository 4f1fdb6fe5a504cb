"""The dynamic programme of Sequoia: numbers alone, without a model."""

from collections.abc import Sequence
from math import inf


def plan(
    acceptance: Sequence[float],
    budget: int,
    depth: int,
    draft_cost: float = 0.0,
    target_cost: Sequence[float] = (),
) -> list[tuple[int, ...]]:
    """Return rank paths of the tree with the most expected tokens, per cost if costs are given."""
    table = _Table(acceptance, budget + 1, depth)
    sizes = [(nodes, levels) for nodes in range(2, budget + 2) for levels in range(1, depth + 1)]
    costed = bool(target_cost) or draft_cost > 0

    def worth(size: tuple[int, int]) -> float:
        nodes, levels = size
        cost = (
            levels * draft_cost + (target_cost[nodes - 1] if target_cost else 0.0)
            if costed
            else 1.0
        )
        return table.best(nodes, levels)[0] / cost

    return table.paths(*max(sizes, key=worth), ())


class _Table:
    """Best subtrees by number of nodes, levels below the top, and exact children of the top.

    The number of nodes includes the top. A subtree with b children is one with b - 1 children and
    fewer nodes, plus a last child that takes the others.
    """

    def __init__(self, acceptance: Sequence[float], nodes: int, depth: int) -> None:
        self.ranks = len(acceptance)
        # (expected emitted tokens, nodes of the last child's subtree) at [levels][nodes][children]
        self.cells = [
            [[(-inf, 0)] * (self.ranks + 1) for _ in range(nodes + 1)] for _ in range(depth + 1)
        ]
        self.bests = [[(-inf, 0)] * (nodes + 1) for _ in range(depth + 1)]
        for levels in range(depth + 1):
            self.cells[levels][1][0] = (1.0, 0)
            self.bests[levels][1] = (1.0, 0)
            for count in range(2, nodes + 1) if levels else ():
                for children in range(1, min(self.ranks, count - 1) + 1):
                    self.cells[levels][count][children] = max(
                        (
                            self.cells[levels][count - last][children - 1][0]
                            + acceptance[children - 1] * self.bests[levels - 1][last][0],
                            last,
                        )
                        for last in range(1, count - children + 1)
                    )
                self.bests[levels][count] = self._best(self.cells[levels][count])

    def best(self, nodes: int, levels: int) -> tuple[float, int]:
        """Most expected tokens and the number of children that give them.

        Minus infinity for too flat a tree.
        """
        return self.bests[levels][nodes]

    def _best(self, values: Sequence[tuple[float, int]]) -> tuple[float, int]:
        children = max(range(self.ranks + 1), key=lambda count: values[count][0])
        return values[children][0], children

    def paths(self, nodes: int, levels: int, above: tuple[int, ...]) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for rank in range(self.best(nodes, levels)[1] - 1, -1, -1):
            last = self.cells[levels][nodes][rank + 1][1]
            found += [above + (rank,), *self.paths(last, levels - 1, above + (rank,))]
            nodes -= last
        return found
