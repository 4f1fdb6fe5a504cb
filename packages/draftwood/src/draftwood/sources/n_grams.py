"""Draft with what the target held likely after the same one or two tokens."""

import ctypes
from dataclasses import dataclass, field
from typing import ClassVar

from draftwood.models.verified import DraftRequest
from draftwood.native.drafting import SharedState, max_order
from draftwood.sources.base import kinds_of
from draftwood.sources.source import Candidates, NativeSource, SourceSession, TargetUpdate
from draftwood.validation import positive

WIDEST = 16  # successors of a context once several rows were averaged

Tail = tuple[int, ...]
"""The newest tokens, at most as many as the longest context."""


class NGramTables:
    """For every context of 1, 2, ... tokens its successors and their probabilities.

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
        """``row`` came after ``tail``, in the context of each of its ends."""
        for length in range(1, len(tail) + 1):
            table, context = self.tables[length - 1], tail[-length:]
            seen = table.get(context)
            table[context] = (
                row if seen is None or self.fresh == 1.0 else _average(seen, row, self.fresh)
            )
            if len(table) > self.max_contexts:
                for old in list(table)[: forgotten(self.max_contexts)]:
                    table.pop(old, None)  # a request of another thread may have been faster

    def rows(self, tail: Tail) -> list[tuple[int, dict[int, float]]]:
        """(length, successors) of every context known that ends the text, longest first."""
        found = [
            (length, self.tables[length - 1].get(tail[-length:]))
            for length in range(len(tail), 0, -1)
        ]
        return [(length, row) for length, row in found if row is not None]


def forgotten(max_contexts: int) -> int:
    """How many contexts are forgotten at once: a quarter."""
    return 1 + max_contexts // 4


class CNGramsSettings(ctypes.Structure):
    """``NGramsSettings`` of native/sources/n_grams.h."""

    _fields_ = (
        ("fresh", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("max_contexts", "forgotten")),
        *((name, ctypes.c_int32) for name in ("order", "widest")),
    )


@dataclass(frozen=True, eq=False)
class NGrams:
    """Tables from the newest tokens to the target's own likeliest successors.

    Every node of every forward pass fills them. Each context length names candidates of its own.
    One token of context is the table of Token Recycling (Luo et al. 2024, arXiv:2408.08696) with
    probabilities; longer ones are those of STAND (Song et al. 2025, arXiv:2506.04708).

    Args:
        order: most tokens of context.
        fresh: weight of the newest forward pass where a context was seen before; 1 forgets what was
            there.
        max_contexts: contexts kept of each length.
        keep: carry the tables over from request to request. Faster on like texts; the tokens stay
            exact, but how fast they come then depends on earlier requests.
    """

    name: ClassVar[str] = "n-grams"
    reads_logits: ClassVar[bool] = True
    order: int = 2
    fresh: float = 0.6
    max_contexts: int = 50_000
    keep: bool = False
    _kept: list[NGramTables] = field(default_factory=list, init=False, repr=False)
    _native_kept: list[SharedState] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        positive("order and max_contexts", [self.order, self.max_contexts])
        if not 0.0 < self.fresh <= 1.0:
            raise ValueError(f"fresh must be above 0 and at most 1, got {self.fresh}")

    def start(self, request: DraftRequest) -> SourceSession:
        if not self.keep or not self._kept:
            tables = NGramTables(self.order, self.fresh, self.max_contexts)
            if not self.keep:
                return _NGramsSession(self, tables)
            self._kept.append(tables)
        return _NGramsSession(self, self._kept[0])

    def native(self) -> NativeSource | None:
        if self.order > max_order():
            return None
        settings = CNGramsSettings(
            self.fresh, self.max_contexts, forgotten(self.max_contexts), self.order, WIDEST
        )
        return NativeSource(
            self.name,
            settings,
            tuple(kinds_of(self.name, self.order)),
            self._native_tables(settings),
        )

    def _native_tables(self, settings: CNGramsSettings) -> SharedState:
        """Tables in C++ for one request, or for all where they are to be kept."""
        if not self.keep:
            return SharedState(self.name, settings)
        if not self._native_kept:  # where two threads add one, both take the first
            self._native_kept.append(SharedState(self.name, settings))
        return self._native_kept[0]


class _NGramsSession:
    def __init__(self, config: NGrams, tables: NGramTables) -> None:
        self.order, self.tables = config.order, tables
        self.kinds = kinds_of(config.name, config.order)
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

    def candidates(self, state: Tail) -> list[Candidates]:
        return [(self.kinds[length], row) for length, row in self.tables.rows(state)]


def _average(old: dict[int, float], new: dict[int, float], fresh: float) -> dict[int, float]:
    mean = {token: (1.0 - fresh) * probability for token, probability in old.items()}
    for token, probability in new.items():
        mean[token] = mean.get(token, 0.0) + fresh * probability
    if len(mean) > WIDEST:
        mean = dict(sorted(mean.items(), key=lambda pair: -pair[1])[:WIDEST])
    return mean
