"""T(n): the seconds that a forward pass over a tree of n nodes takes on this machine."""

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

import numpy as np

from draftwood.models.model import Model
from draftwood.storage.memory import is_lack_of_memory
from draftwood.tree import DraftTree

QUICK = (1, 2, 4, 8, 16, 32, 64)
FULL = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
ENOUGH = (1, 4, 16)  # the sizes that a slow model runs, once if need be
LENGTH = 128  # committed tokens before the tree
DEPTH = 4  # of the trees, as deep as those that methods draft
ROUNDS = 15
LEAST_ROUNDS = 5  # before times can be said to agree
AGREEMENT = 0.03  # of times that say the same
FAR_NODES, FURTHER, FAR_RUNS = 8, 512, 7  # what is run after so many tokens more, and how often
# of a plain pass per node, where nothing else is known; two CPU cores have about 1/12
ASSUMED_SLOPE = 1 / 8


@dataclass(frozen=True)
class Curve:
    """Seconds of one forward pass by number of nodes.

    The root is counted, so ``curve(1)`` is a step of plain decoding. Linear between measured sizes.
    Beyond the last it continues with the slope at its end, or with the average slope if that is
    larger, so that one lucky measurement does not make all larger trees free.

    Attributes:
        nodes: sizes measured, growing, the first is 1.
        seconds: of each, above 0 and never falling; ``Curve.fit`` makes measured times so.
        per_context_token: seconds that each node takes longer for every token of context beyond
            ``context``; 0 where unknown.
        usual_nodes: sizes that are measured where nothing else is asked for.
        context: committed tokens before the trees that are measured.

    Raises:
        ValueError: for anything else.
    """

    usual_nodes: ClassVar[tuple[int, ...]] = FULL
    context: ClassVar[int] = LENGTH
    nodes: tuple[int, ...]
    seconds: tuple[float, ...]
    per_context_token: float = 0.0

    def __post_init__(self) -> None:
        nodes, seconds = list(self.nodes), list(self.seconds)
        if len(nodes) != len(seconds) or nodes[:1] != [1] or nodes != sorted(set(nodes)):
            raise ValueError(
                "a curve needs growing numbers of nodes from 1 on and one time for each, got nodes"
                f" {nodes} and seconds {seconds}"
            )
        if not all(math.isfinite(value) and value > 0 for value in seconds) or seconds != sorted(
            seconds
        ):
            raise ValueError(
                f"a curve's seconds must be above 0 and never fall, got {seconds}; Curve.fit"
                " smooths measured times"
            )
        if not (math.isfinite(self.per_context_token) and self.per_context_token >= 0):
            raise ValueError(
                f"per_context_token must be a time of at least 0, got {self.per_context_token}"
            )

    @classmethod
    def fit(cls, seconds: Mapping[int, float], per_context_token: float = 0.0) -> "Curve":
        """The curve nearest to measured times that never falls.

        Noise must not make a larger tree look cheaper.

        Args:
            seconds: by number of nodes, in any order, 1 among them.
            per_context_token: as in ``Curve``.

        Raises:
            ValueError: for times that are no finite numbers above 0, and where there is none for 1.
        """
        level = pooled(seconds, dict.fromkeys(seconds, 1))
        return cls(tuple(level), tuple(level.values()), per_context_token)

    def __call__(self, nodes: int) -> float:
        """Seconds of one pass over this many nodes.

        Raises:
            ValueError: for less than one node; the root is one.
        """
        if nodes < 1:
            raise ValueError(f"a forward pass has at least one node, the root, got {nodes}")
        right = bisect_right(self.nodes, nodes)
        if right == len(self.nodes):
            return self.seconds[-1] + self._slope * (nodes - self.nodes[-1])
        (low, high), (before, after) = (
            self.nodes[right - 1 : right + 1],
            self.seconds[right - 1 : right + 1],
        )
        return before + (after - before) * (nodes - low) / (high - low)

    @property
    def _slope(self) -> float:
        """Seconds per node beyond the last size."""
        if len(self.nodes) == 1:
            return self.seconds[0] * ASSUMED_SLOPE
        (low, high), (before, after) = self.nodes[-2:], self.seconds[-2:]
        whole = (after - self.seconds[0]) / (high - 1)
        return max(whole, (after - before) / (high - low))


def pooled(seconds: Mapping[int, float], weights: Mapping[int, int]) -> dict[int, float]:
    """The times nearest to measured ones that never fall, by growing number of nodes.

    Args:
        seconds: by number of nodes.
        weights: of each, above 0.
    """
    # mean of neighbours that had to be made equal, their weight, and how many they are
    pools: list[tuple[float, int, int]] = []
    for size in sorted(seconds):
        mean, weight, count = seconds[size], weights[size], 1
        while pools and pools[-1][0] > mean:
            other, more, members = pools.pop()
            mean = (mean * weight + other * more) / (weight + more)
            weight, count = weight + more, count + members
        pools.append((mean, weight, count))
    level = [float(mean) for mean, _, count in pools for _ in range(count)]
    return dict(zip(sorted(seconds), level, strict=True))


def measure(
    model: Model,
    sizes: Iterable[int] = QUICK,
    length: int = LENGTH,
    seconds: float = 3.0,
    rounds: int = ROUNDS,
    *,
    clock: Callable[[], float] = time.perf_counter,
    advance: Callable[[], None] = lambda: None,
) -> Curve:
    """Measure the curve of a model: medians of rounds in which the sizes take turns.

    Taking turns spreads noise over all sizes. A model too slow for all of them is measured on fewer
    sizes, in fewer rounds and after fewer tokens; at least one pass is made, however long it takes.

    Args:
        sizes: numbers of nodes, the root counted; 1 is always measured.
        length: committed tokens before the tree.
        seconds: most time to spend in all.
        rounds: most passes of each size that count; the first one of each warms up. There are fewer
            where they agree.
        clock: tells the time in seconds.
        advance: called after the first passes and after every round.

    Raises:
        ValueError: for sizes, lengths or times that make no sense.
    """
    wanted = sorted({1, *sizes})
    if wanted[0] < 1 or length < 1 or not seconds > 0:
        raise ValueError(
            f"sizes, length and seconds must be above 0, got sizes {wanted}, length {length},"
            f" seconds {seconds}"
        )
    bench = _Bench(model, seconds, clock)
    try:
        bench.fill(length)
        if bench.has_room:
            bench.warm_up(wanted)
            advance()
        for turn in range(rounds if bench.has_room else 0):
            if not bench.fits(sum(bench.typical.values()) + bench.far):
                break
            bench.round(backwards=turn % 2 == 1)
            advance()
            if bench.settled:
                break
        per_context_token = bench.per_context_token()
    finally:
        bench.session.close()
    return Curve.fit(
        {size: round(value, 9) for size, value in bench.typical.items()},
        round(per_context_token, 12),
    )


class _Bench:
    """Timed passes of one session, until the time is up."""

    def __init__(self, model: Model, seconds: float, clock: Callable[[], float]) -> None:
        self.model, self.clock = model, clock
        self.start, self.end = clock(), clock() + seconds
        self.random = np.random.default_rng(0)
        # a size's first pass warms up, and counts only where no other follows
        self.first: dict[int, float] = {}
        self.times: dict[int, list[float]] = {}
        self.session = model.start()

    @property
    def typical(self) -> dict[int, float]:
        """Seconds by size as far as they are known."""
        return {size: median(self.times.get(size) or [first]) for size, first in self.first.items()}

    @property
    def settled(self) -> bool:
        """True if more rounds would say the same: the middle half of each size's times agrees."""
        for size in self.first:
            times = sorted(self.times.get(size, ()))
            quarter = len(times) // 4
            if len(times) < LEAST_ROUNDS or (
                times[-1 - quarter] > (1 + AGREEMENT) * times[quarter]
            ):
                return False
        return True

    @property
    def has_room(self) -> bool:
        """True if a tree fits the model's context behind a token."""
        limit = self.model.context_length
        return limit is None or limit >= DEPTH + 2

    def fits(self, seconds: float, end: float | None = None) -> bool:
        return self.clock() + seconds <= (self.end if end is None else end)

    def fill(self, length: int) -> None:
        """Commit tokens in pieces that double in size, within a quarter of the time.

        One piece is committed in any case.
        """
        end = self.start + (self.end - self.start) / 4
        limit = self.model.context_length
        length = length if limit is None else max(1, min(length, limit - DEPTH - 1))
        piece, took = 1, 0.0
        while (room := length - self.session.length) > 0 and (
            not self.first or self.fits(2 * took, end)
        ):
            tokens, since = self._tokens(min(piece, room)), self.clock()
            _ = self.session.extend(tokens, keep="last").rows
            took, piece = self._since(since), 2 * piece
            self.first.setdefault(1, took)  # of one token, cold

    def warm_up(self, sizes: Sequence[int]) -> None:
        """Run the first pass of each size while time is left, the most informative sizes first."""
        for size in sorted(sizes, key=lambda size: (size not in ENOUGH, size)):
            expected = Curve.fit(self.first)(size)
            later = 0.0 if size in ENOUGH else 3 * (sum(self.first.values()) + expected)
            if not self.fits(expected + later):
                continue
            try:
                self.first[size] = self._run(size)
                # the first pass of a size records or loads what others repeat
                if self.model.device.type != "cpu":
                    self.first[size] = self._run(size)
            except (RuntimeError, MemoryError) as error:
                if not is_lack_of_memory(error):
                    raise
                break  # a tree this large is of no use here

    def round(self, backwards: bool) -> None:
        """Run one pass of each size.

        Every other round goes backwards, since a pass leaves traces in the processor's caches.
        """
        for size in sorted(self.first, reverse=backwards):
            if self.fits(0.0):
                self.times.setdefault(size, []).append(self._run(size))

    def per_context_token(self) -> float:
        """Measure the extra seconds of a node for each token of context.

        Passes of one size are timed after more tokens than before. 0 if there is no time or no
        context left for that, or no difference.
        """
        limit, far = self.model.context_length, self.far
        if (
            far == 0.0
            or not self.fits(far)
            or (limit and self.session.length + FURTHER + DEPTH >= limit)
        ):
            return 0.0
        try:
            near = self._runs()
            _ = self.session.extend(self._tokens(FURTHER), keep="last").rows
            more = median(self._runs()) - median(near)
        except (RuntimeError, MemoryError) as error:
            if not is_lack_of_memory(error):
                raise
            return 0.0
        _, *usual, _ = sorted(near)  # a single burst of noise says nothing
        return more / (FAR_NODES * FURTHER) if more > usual[-1] - usual[0] else 0.0

    @property
    def far(self) -> float:
        """Seconds that ``per_context_token`` takes, if it may take so many; else 0."""
        largest, typical = max(self.first), self.typical
        if FAR_NODES not in typical:
            return 0.0
        seconds = FURTHER * typical[largest] / largest + 3 * (1 + FAR_RUNS) * typical[FAR_NODES]
        return seconds if seconds <= (self.end - self.start) / 3 else 0.0

    def _runs(self) -> list[float]:
        return [self._run(FAR_NODES) for _ in range(1 + FAR_RUNS)][1:]

    def _run(self, size: int) -> float:
        tokens, parents = self._tokens(size), tree_parents(size)
        since = self.clock()
        # The engine reads logits on the host after every pass, which on a GPU also waits for its
        # end.
        _ = self.session.forward(DraftTree.of(tokens, parents)).rows
        return self._since(since)

    def _since(self, start: float) -> float:
        return max(self.clock() - start, 1e-9)  # a coarse clock may not have moved

    def _tokens(self, count: int) -> list[int]:
        """Different tokens, since equal ones would all take the same experts."""
        return self.random.integers(self.model.vocab_size, size=count).tolist()


def tree_parents(nodes: int) -> list[int]:
    """Parents of the narrowest tree of this many nodes that is no deeper than ``DEPTH``.

    They come level by level.
    """
    branches = 1
    while sum(branches**level for level in range(DEPTH + 1)) < nodes:
        branches += 1
    return [(node - 1) // branches if node else -1 for node in range(nodes)]
