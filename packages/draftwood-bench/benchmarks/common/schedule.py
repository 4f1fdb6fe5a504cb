"""The schedule of a team of threads, simulated with tasks that one thread did and timed."""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import addressof
from dataclasses import dataclass, fields
from itertools import groupby, pairwise
from statistics import median

from draftwood.models.native import NativeModel
from draftwood.native import structures

ROOM = 1 << 16
"""Tasks of one pass that a trace has room for."""


class TaskTrace:
    """Seconds of each task of passes that are split for more threads than do them.

    Args:
        threads: how many the work is split for; the calling thread does all of it.

    Attributes:
        passes: per pass, per phase, the seconds of its tasks in their order.
    """

    def __init__(self, threads: int) -> None:
        self._tasks = (structures.CTaskTime * ROOM)()
        self._trace = structures.CTaskTrace(threads, ROOM, 0, self._tasks)
        self.passes: list[list[list[float]]] = []

    def next_run(self, run: structures.CForwardInput, threads: int) -> int:
        """Have the next forward pass traced; gives its number of threads."""
        self._trace.count = 0
        run.trace = addressof(self._trace)
        return threads

    def keep(self) -> None:
        """Keep the tasks of the pass that was just made.

        Raises:
            ValueError: for a pass of more tasks than there is room for.
        """
        if self._trace.count > ROOM:
            raise ValueError(
                f"the pass had {self._trace.count} tasks and a trace has room for {ROOM}; split it"
                " for fewer threads"
            )
        told = self._tasks[: self._trace.count]
        by_phase = groupby(told, key=lambda task: task.phase)
        self.passes.append([[task.seconds for task in tasks] for _, tasks in by_phase])

    def typical(self) -> list[list[float]]:
        """Per phase the seconds of its tasks, each the median of all passes."""
        return [
            [median(seconds) for seconds in zip(*phase, strict=True)]
            for phase in zip(*self.passes, strict=True)
        ]


@contextmanager
def traced(model: NativeModel, threads: int) -> Iterator[TaskTrace]:
    """Trace the passes that a model makes within the context."""
    trace = TaskTrace(threads)
    model.clock = trace.next_run
    try:
        yield trace
    finally:
        model.clock = None


@dataclass(frozen=True)
class Foretold:
    """Seconds of a pass by what the team was at; they add up to its time.

    Attributes:
        busy: mean of the threads' work on phases that several share.
        uneven: waiting for the last of a phase's tasks.
        alone: phases of a single task, which one thread does while all others wait.
        opening: between the last task of a phase and the first of the next.
    """

    busy: float
    uneven: float
    alone: float
    opening: float

    @property
    def seconds(self) -> float:
        """The whole pass."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def serial(self) -> float:
        """Share of the pass in which more threads change nothing."""
        return (self.alone + self.opening) / self.seconds


def foretell(phases: Sequence[Sequence[float]], threads: int, opening: float = 0.0) -> Foretold:
    """Simulate a pass on as many cores as threads (``native/team.h``).

    Args:
        phases: seconds of each phase's tasks.
        opening: seconds to open a phase that several share.
    """
    shared = [tasks for tasks in phases if len(tasks) > 1]
    busy = sum(map(sum, shared)) / threads
    return Foretold(
        busy,
        sum(finish(tasks, threads) for tasks in shared) - busy,
        sum(sum(tasks) for tasks in phases if len(tasks) == 1),
        opening * len(shared),
    )


def finish(tasks: Sequence[float], threads: int) -> float:
    """Seconds until a phase's last task is done: each thread does its share, then those of others
    in the order of their places.
    """
    bounds = [len(tasks) * place // threads for place in range(threads + 1)]
    shares = [deque(tasks[a:b]) for a, b in pairwise(bounds)]
    free = [(0.0, place) for place in range(threads)]
    for _ in tasks:
        now, place = heapq.heappop(free)
        found = next(each for i in range(threads) if (each := shares[(place + i) % threads]))
        heapq.heappush(free, (now + found.popleft(), place))
    return max(free)[0]
