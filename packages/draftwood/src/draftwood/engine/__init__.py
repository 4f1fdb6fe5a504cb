"""The loop: draft, one forward pass of the target over the drafts, keep what it agrees with."""

from draftwood.engine.method import Method
from draftwood.engine.options import Bound, FinishReason, Options, StopCheck, StopRule
from draftwood.engine.overlap import Overlap, Overlapped
from draftwood.engine.parallel_sampling import ParallelSampling
from draftwood.engine.scheduler import Scheduler, generate, generate_batch, run_all
from draftwood.engine.sequence import Sequence
from draftwood.engine.task import Event, Input, Limits, OwnPass, Task

__all__ = [
    "Bound",
    "Event",
    "FinishReason",
    "Input",
    "Limits",
    "Method",
    "Options",
    "Overlap",
    "Overlapped",
    "OwnPass",
    "ParallelSampling",
    "Scheduler",
    "Sequence",
    "StopCheck",
    "StopRule",
    "Task",
    "generate",
    "generate_batch",
    "run_all",
]


def __getattr__(name: str) -> object:
    """Look up a name that this package exported before."""
    from draftwood.moved import moved_name

    return moved_name(__name__, name)
