"""The loop: draft, one forward pass of the target over the drafts, keep what it agrees with.

A ``Scheduler`` decides which ``Sequence``s run; the ``Executor`` of each makes its steps.
"""

from draftwood.drafters.overlap import Overlap
from draftwood.engine.executors import Executor, InTurn, NativeSteps, Overlapped, Overlapping
from draftwood.engine.method import Method
from draftwood.engine.options import Bound, FinishReason, Options, StopCheck, StopRule
from draftwood.engine.parallel_sampling import ParallelSampling
from draftwood.engine.scheduler import Scheduler, generate, generate_batch, run_all
from draftwood.engine.sequence import Sequence
from draftwood.engine.task import Event, Limits, OwnPass, SequenceStatus, StepBudget, Task
from draftwood.models.model import ModelInput

__all__ = [
    "Bound",
    "Event",
    "Executor",
    "FinishReason",
    "InTurn",
    "Limits",
    "Method",
    "ModelInput",
    "NativeSteps",
    "Options",
    "Overlap",
    "Overlapped",
    "Overlapping",
    "OwnPass",
    "ParallelSampling",
    "Scheduler",
    "Sequence",
    "SequenceStatus",
    "StepBudget",
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
