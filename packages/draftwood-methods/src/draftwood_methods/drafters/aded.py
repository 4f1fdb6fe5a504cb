"""Draft with an adaptive table of what followed each pair of tokens."""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import ClassVar

from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
from draftwood.sampling import Context
from draftwood.tree import DraftTree
from draftwood.validation import positive

Pair = tuple[int, int]


@dataclass(frozen=True)
class Aded(Drafter):
    """The likeliest continuations in a tri-gram table that is bent towards the newest text.

    Liu et al. 2024, arXiv:2407.12021. Weights of the tri-grams among the newest tokens rise with
    every forward pass and are clipped. The draft tokens are the nodes whose path has the largest
    product of weights, each divided by the sum of weights of its pair.

    Differs from the paper: no table from a text collection unless ``table`` gives one, the prompt
    is read instead; each tri-gram rises once as it is written, by what overlapping windows of 16
    tokens add up to; and the tree is searched best first, which finds what the paper's Monte Carlo
    tree search approximates.

    Args:
        nodes: most draft tokens.
        depth: most draft tokens in a row.
        rise: added to a tri-gram's weight when it is written.
        largest: weights are clipped here.
        successors: heaviest successors of a pair that are considered.
        table: weights to start with, (token, token) -> {token: weight}; never changed.

    Example:
        The pair 1 2 was followed by 3, and 2 3 by 1; nothing is known of 3 1 in the place behind.

        >>> one_step(Aded(nodes=4), writing([1, 2, 3, 4]), [1, 2, 3, 1, 2])
        OneStep(drafted=[[3, 1]], accepted=[3], then=4)
    """

    name: ClassVar[str] = "aded"
    nodes: int = 16
    depth: int = 8
    rise: float = 0.56
    largest: float = 3.0
    successors: int = 12
    table: dict[Pair, dict[int, float]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        positive("nodes, depth and successors", [self.nodes, self.depth, self.successors])
        if not 0.0 < self.rise <= self.largest:
            raise ValueError(
                f"rise must be above 0 and at most largest, got {self.rise} and {self.largest}"
            )

    def start(self, request: DraftRequest) -> DraftSession:
        return _AdedSession(self)


class _AdedSession(DraftSession):
    def __init__(self, config: Aded) -> None:
        self.config = config
        self.own: dict[Pair, dict[int, float]] = {}  # pairs that this request changed
        self.newest: tuple[int, ...] = ()

    def propose(self, root: int, context: Context) -> DraftTree:
        tokens, parents = [root], [-1]
        depth = min(self.config.depth, context.max_draft_len)
        if not self.newest or depth < 1:
            return DraftTree.of(tokens, parents)
        pairs, depths = [(self.newest[-1], root)], [0]
        heap: list[tuple[float, int, int, int]] = []
        self._offer(heap, 1.0, pairs[0], 0)
        while heap and len(tokens) <= self.config.nodes:
            chance, _, token, parent = heappop(heap)
            pairs.append((pairs[parent][1], token))
            depths.append(depths[parent] + 1)
            tokens.append(token)
            parents.append(parent)
            if depths[-1] < depth:
                self._offer(heap, -chance, pairs[-1], len(tokens) - 1)
        return DraftTree.of(tokens, parents)

    def _offer(
        self, heap: list[tuple[float, int, int, int]], chance: float, pair: Pair, node: int
    ) -> None:
        """Put what may follow ``node`` on the heap.

        Of equal chances the earlier node's wins, then the heavier's.
        """
        row = self._row(pair)
        total = sum(row.values())
        heaviest = sorted(row.items(), key=lambda entry: -entry[1])[: self.config.successors]
        for rank, (token, weight) in enumerate(heaviest):
            heappush(
                heap, (-chance * weight / total, node * self.config.successors + rank, token, node)
            )

    def _row(self, pair: Pair) -> dict[int, float]:
        return self.own.get(pair) or self.config.table.get(pair, {})

    def update(self, verified: VerifiedTree) -> None:
        for token in verified.tokens:
            if len(self.newest) == 2:
                row = self.own.setdefault(self.newest, dict(self.config.table.get(self.newest, {})))  # type: ignore[arg-type]
                row[token] = min(self.config.largest, row.get(token, 0.0) + self.config.rise)
            self.newest = (*self.newest, token)[-2:]
