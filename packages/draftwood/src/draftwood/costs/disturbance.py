"""Curves that are measured beside other programs."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from draftwood.costs.cpu_share import CpuShare
from draftwood.costs.curve import Curve
from draftwood.models.model import Model

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
    cpu = CpuShare()
    since, used = time.perf_counter(), time.thread_time()
    curve = make()
    share = (time.thread_time() - used) / max(time.perf_counter() - since, 1e-9)
    busy = is_disturbed(min(share, cpu.share))
    return MeasuredCurve(curve, model.device.type == "cpu" and busy)
