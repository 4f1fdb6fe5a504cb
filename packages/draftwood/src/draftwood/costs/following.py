"""A cost curve that the passes of texts correct."""

import math
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

from draftwood.costs.curve import LENGTH, Curve, pooled
from draftwood.sampling import PassTime

SIZES = (
    *range(1, 17),
    *(20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512),
)
"""Nodes by which passes are told apart; those between count for the nearer one."""
LOGS = [math.log(size) for size in SIZES]
NEWEST = 21  # passes of a size that count; their median is believed
ENOUGH = 3  # passes of a size, so that one of them that was disturbed says nothing
LONG_AGO = 512  # passes; what was seen before them is tried again
MOVED = 0.03  # share that a new curve must differ by to be used
OFTEN, SELDOM = 16, 64  # passes from one look at the curve to the next
SHORTEST, LONGEST = 8, 64  # steps from one trial to the next
TRIED_NODES = 64  # largest size that trials care for
HALF = 0.5  # of the slope so far, that a trial hopes for beyond it
HOPED_SLOPE, LEAST_SLOPE = 1 / 32, 1 / 512  # of a plain pass per node: at first, and later
QUARTER = math.log(1.25)  # a curve that is off by so much is measured again
SHARED = 16  # passes in a row, at most, that each text which shared them tells of
SURE = 5  # passes of a size before they contradict a curve


class Following:
    """Seconds of a pass by nodes: a curve to begin with, corrected by every pass that runs.

    For each size the median of the newest passes' ratios to the first curve corrects it; sizes
    that did not run take the correction of their neighbours, straight in the logarithm of nodes.

    A curve that makes trees look too expensive would never be contradicted, as no tree would run,
    nor one that makes a single node look too expensive, as all steps would draft. So a step in
    ``SHORTEST`` to ``LONGEST`` is a trial: sizes that have not run lately then cost as little as
    they may, given the largest size below that has, or the smallest above. Where that changes
    nothing, trials become seldom.

    It affects speed alone, never a text. Threads may share it.

    Args:
        curve: to begin with.
        is_good: whether that was measured, and nothing disturbed it.
    """

    def __init__(self, curve: Curve, is_good: bool = True) -> None:
        self._lock = threading.Lock()
        self.restart(curve, is_good)

    def restart(self, curve: Curve, is_good: bool = True) -> None:
        """Begin again with another curve."""
        with self._lock:
            self.first, self.is_good = curve, is_good
            self.passes = 0
            self._curve, self._before = curve, [curve(size) for size in SIZES]
            self._ratios: list[deque[float]] = [deque(maxlen=NEWEST) for _ in SIZES]
            self._newest = [0] * len(SIZES)  # number of the last pass of each size
            self._told: deque[PassTime] = deque(maxlen=SHARED)
            self._look_at, self._pause = 0, OFTEN  # of the curve
            self._left, self._interval = SHORTEST, SHORTEST  # steps to the next trial
            self._tries = False

    @property
    def curve(self) -> Curve:
        """Curve as known now; the same object until it has changed."""
        return self._curve

    @property
    def per_context_token(self) -> float:
        return self._curve.per_context_token

    @property
    def context(self) -> int:
        return self._curve.context

    def __call__(self, nodes: int) -> float:
        return self._curve(nodes)

    def saw(self, took: PassTime | None) -> None:
        """Record a pass; one that is reported twice in a row counts once."""
        if took is None or took.nodes > SIZES[-1] or any(took is each for each in self._told):
            return
        with self._lock:
            self._told.append(took)
            beyond = max(0.0, took.context - LENGTH)
            expected = self.first(took.nodes)
            expected += took.nodes * beyond * self.first.per_context_token
            place = _nearest(took.nodes)
            if self._tries:
                new = not self._is_fresh(place)
                self._interval = SHORTEST if new else min(2 * self._interval, LONGEST)
                self._tries = False
            self.passes += 1
            self._ratios[place].append(math.log(max(took.seconds, 1e-9) / expected))
            self._newest[place] = self.passes
            if len(self._ratios[place]) <= ENOUGH or self.passes >= self._look_at:
                self._look()

    def trial(self) -> Curve | None:
        """Return the best times that passes may reach if the next step is to try them; else None.

        Counts the step.
        """
        self._left -= 1
        if self._left > 0:
            return None
        with self._lock:
            self._left = self._interval
            if not self.passes:  # no pass has been timed
                return None
            hoped = self._hoped()
            self._tries = hoped is not None
            return hoped

    @property
    def is_off(self) -> bool:
        """True if passes of some size take a quarter more or less than the first curve says."""
        sure = [_median(tuple(each)) for each in self._ratios if len(each) >= SURE]
        return any(abs(ratio) > QUARTER for ratio in sure)

    def _is_fresh(self, place: int) -> bool:
        age = self.passes - self._newest[place]
        return len(self._ratios[place]) >= ENOUGH and age < LONG_AGO

    def _look(self) -> None:
        """Replace the curve if the recorded passes changed it."""
        found = self._corrected()
        if self._curve is self.first or _moved(self._curve.seconds, found.seconds):
            self._curve, self._pause = found, OFTEN
        else:
            self._pause = min(2 * self._pause, SELDOM)
        self._look_at = self.passes + self._pause

    def _corrected(self) -> Curve:
        known: dict[int, float] = {}  # by place
        few: list[int] = []  # places where one pass may say all there is
        for place, seen in enumerate(self._ratios):
            if len(seen) >= ENOUGH:
                known[place] = _median(seen)
            elif seen:
                few.append(place)
        usual = _between(known)
        for place in few:  # in part what the others say
            seen = self._ratios[place]
            share = len(seen) / (len(seen) + 1)
            known[place] = share * _median(seen) + (1 - share) * usual[place]
        ratios = _between(known)
        seconds = [
            before * math.exp(ratio) for before, ratio in zip(self._before, ratios, strict=True)
        ]
        weights = {place: len(self._ratios[place]) for place in known}
        seen = pooled({place: seconds[place] for place in known}, weights)
        more = self.first.per_context_token * math.exp(_median(list(known.values())))
        return Curve(SIZES, tuple(_held_between(seconds, seen)), more)

    def _hoped(self) -> Curve | None:
        """Curve with the least cost that sizes which have not run lately may have."""
        curve, seconds = self._curve, {}
        fresh = [size for place, size in enumerate(SIZES) if self._is_fresh(place)]
        smallest = min(fresh, default=1)
        largest, at_largest = 1, curve(smallest) / smallest  # of those that have run lately
        slope, least = HOPED_SLOPE * curve(1), LEAST_SLOPE * curve(1)
        for place, size in enumerate(SIZES):
            seconds[size] = now = curve(size)
            if size < smallest:  # every node costs alike, at best
                seconds[size] = min(now, curve(smallest) * size / smallest)
                continue
            if self._is_fresh(place):
                if size > 1:
                    slope = max(least, HALF * (now - curve(1)) / (size - 1))
                largest, at_largest = size, now
            elif largest < size <= 2 * largest + 1:
                seconds[size] = min(now, at_largest + slope * (size - largest))
        if all(seconds[size] == curve(size) for size in SIZES if size <= TRIED_NODES):
            return None
        return Curve(SIZES, tuple(seconds.values()), curve.per_context_token)


def _nearest(nodes: int) -> int:
    """Place of the size nearest in ratio."""
    place = bisect_left(SIZES, nodes)
    if SIZES[place] == nodes or nodes * nodes > SIZES[place] * SIZES[place - 1]:
        return place
    return place - 1


def _median(values: Sequence[float]) -> float:
    """The middle value, the lower of two."""
    return sorted(values)[(len(values) - 1) // 2]


def _moved(before: Sequence[float], after: Sequence[float]) -> bool:
    return any(not -MOVED < new / old - 1 < MOVED for old, new in zip(before, after, strict=True))


def _between(known: Mapping[int, float]) -> list[float]:
    """A value for each size from those of some places.

    Straight in the logarithm of nodes, flat at both ends; 0 where there is none at all.
    """
    places = sorted(known)
    if not places:
        return [0.0] * len(SIZES)
    found = [known[places[0]]] * places[0]
    for low, high in pairwise(places):
        slope = (known[high] - known[low]) / (LOGS[high] - LOGS[low])
        found += [known[low] + slope * (LOGS[place] - LOGS[low]) for place in range(low, high)]
    return found + [known[places[-1]]] * (len(SIZES) - places[-1])


def _held_between(seconds: Sequence[float], seen: Mapping[int, float]) -> list[float]:
    """Times of places that ran, and of the others no less and no more than theirs allow."""
    held, above = list(seconds), math.inf
    for place in reversed(range(len(held))):
        held[place] = above = seen.get(place, min(held[place], above))
    below = 0.0
    for place, value in enumerate(held):
        held[place] = below = max(value, below)
    return held
