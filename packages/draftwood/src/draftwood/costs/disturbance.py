"""Curves that are measured beside other programs, and the CPU time that these took."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from draftwood.costs.curve import Curve
from draftwood.models.model import Model

Made = TypeVar("Made")

LEAST_SHARE = 0.8  # of the CPU that is wanted; left alone, a process gets all of it


def is_disturbed(share: float) -> bool:
    """True if this share of the CPU is too little for a time to be trusted."""
    return share < LEAST_SHARE


@dataclass(frozen=True)
class MeasuredCurve:
    """A curve, and whether other programs took too much of the CPU for it to be trusted."""

    curve: Curve
    busy: bool


def watched(model: Model, make: Callable[[], Curve]) -> MeasuredCurve:
    """Measure a curve by calling ``make``, and check that it had the CPU to itself."""
    curve, was_alone = alone(model, make)
    return MeasuredCurve(curve, not was_alone)


def alone(model: Model, make: Callable[[], Made]) -> tuple[Made, bool]:
    """Measure something of a model, and tell whether that had the CPU, if it runs there, alone."""
    cpu = CpuShare()
    since, used = time.perf_counter(), time.thread_time()
    made = make()
    share = (time.thread_time() - used) / max(time.perf_counter() - since, 1e-9)
    return made, model.device.type != "cpu" or not is_disturbed(min(share, cpu.share))


class CpuShare:
    """Share of the wanted CPU time that this process has got since construction.

    Linux counts how long each thread was ready and had to wait, and how long a virtual machine was
    stopped for others. On other systems the share is always 1.
    """

    def __init__(self) -> None:
        self._since, self._used = time.perf_counter(), time.process_time()
        self._waited, self._stolen = _waited(), _stolen()

    @property
    def share(self) -> float:
        """Between 0 and 1; 1 where nothing was wanted."""
        used = time.process_time() - self._used
        missed = max(0.0, _waited() - self._waited)
        missed += used * self._stolen_share()
        return used / (used + missed) if used + missed > 0.0 else 1.0

    def _stolen_share(self) -> float:
        seconds = (time.perf_counter() - self._since) * (os.cpu_count() or 1)
        return max(0.0, _stolen() - self._stolen) / max(seconds, 1e-9)


def _waited() -> float:
    """Seconds that threads of this process were ready and did not run."""
    return sum(_words(path, 1, 1e-9) for path in Path("/proc/self/task").glob("*/schedstat"))


def _stolen() -> float:
    """Seconds of all CPUs that the hypervisor gave to other machines."""
    return _words(Path("/proc/stat"), 8, 1 / _ticks())


def _words(path: Path, place: int, unit: float) -> float:
    try:
        words: Iterable[str] = path.read_text(encoding="ascii").split("\n", 1)[0].split()
        return float(list(words)[place]) * unit
    except (OSError, ValueError, IndexError):  # a thread that ended, or another system
        return 0.0


def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
