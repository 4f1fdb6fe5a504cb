"""Tables of what the target held likely after the same few tokens, for drafters that draw of them.

``draftwood.sources.NGrams`` is the same in C++, for merged trees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from draftwood.drafters.drafter import DraftRequest
from draftwood.sources.source import Evidence, TargetUpdate
from draftwood.validation import positive

WIDEST = 16  # successors of a context once several rows were averaged

Tail = tuple[int, ...]
"""The newest tokens, at most as many as the longest context."""


class NGramTables:
    """Successors of every context of 1, 2, ... tokens, and their probabilities.

    Probabilities are averaged over the forward passes that saw the context.

    Args:
        order: most tokens of context.
        fresh: weight of the newest row where a context was seen before.
        max_contexts: contexts kept of each length; beyond, the oldest quarter is forgotten.
    """

    def __init__(self, order: int, fresh: float, max_contexts: int) -> None:
        self.fresh, self.max_contexts = fresh, max_contexts
        self.tables: list[dict[Tail, dict[int, float]]] = [{} for _ in range(order)]

    def learn(self, tail: Tail, row: dict[int, float]) -> None:
        """Learn that ``row`` came after ``tail``, in the context of each of its ends."""
        for length in range(1, len(tail) + 1):
            table, context = self.tables[length - 1], tail[-length:]
            seen = table.get(context)
            table[context] = (
                row if seen is None or self.fresh == 1.0 else _average(seen, row, self.fresh)
            )
            if len(table) > self.max_contexts:
                for old in list(table)[: 1 + self.max_contexts // 4]:
                    table.pop(old, None)  # a request of another thread may have been faster

    def rows(self, tail: Tail) -> list[tuple[int, dict[int, float]]]:
        """Look up (length, successors) of every context known that ends the text, longest first."""
        found = [
            (length, self.tables[length - 1].get(tail[-length:]))
            for length in range(len(tail), 0, -1)
        ]
        return [(length, row) for length, row in found if row is not None]


@dataclass(frozen=True)
class NGramSource:
    """The target's likeliest successors of the newest tokens, as a source in Python.

    Args:
        order: most tokens of context.
        fresh: weight of the newest forward pass where a context was seen before.
        max_contexts: contexts kept of each length.
    """

    name: ClassVar[str] = "n-grams"
    reads_logits: ClassVar[bool] = True
    order: int = 3
    fresh: float = 0.6
    max_contexts: int = 50_000

    def __post_init__(self) -> None:
        positive("order and max_contexts", [self.order, self.max_contexts])

    def start(self, request: DraftRequest) -> "NGramSession":
        tables = NGramTables(self.order, self.fresh, self.max_contexts)
        return NGramSession(tables, [Evidence(self.name, n) for n in range(self.order + 1)])


class NGramSession:
    """The n-grams of one request.

    Args:
        tables: where they are kept.
        kinds: of evidence, by tokens of context.
    """

    def __init__(self, tables: NGramTables, kinds: Sequence[Evidence]) -> None:
        self.order, self.tables, self.kinds = len(tables.tables), tables, kinds
        self.tail: Tail = ()

    def learn(self, news: TargetUpdate) -> None:
        if news.quiet:
            self.tail = (*self.tail, *news.accepted.tokens)[-self.order :]
            return
        tree = news.accepted.tree
        tails: list[Tail] = []
        for token, parent, row in zip(tree.token_list, tree.parent_list, news.rows, strict=True):
            tails.append(self.advance(self.tail if parent < 0 else tails[parent], token))
            self.tables.learn(tails[-1], row)
        self.tail = tails[news.accepted.path[-1]]

    def begin(self, root: int) -> Tail:
        return self.advance(self.tail, root)

    def advance(self, state: Tail, token: int) -> Tail:
        return (*state, token)[-self.order :]

    def candidates(self, state: Tail) -> list[tuple[Evidence, dict[int, float]]]:
        return [(self.kinds[length], row) for length, row in self.tables.rows(state)]


def _average(old: dict[int, float], new: dict[int, float], fresh: float) -> dict[int, float]:
    mean = {token: (1.0 - fresh) * probability for token, probability in old.items()}
    for token, probability in new.items():
        mean[token] = mean.get(token, 0.0) + fresh * probability
    if len(mean) > WIDEST:
        mean = dict(sorted(mean.items(), key=lambda pair: -pair[1])[:WIDEST])
    return mean
