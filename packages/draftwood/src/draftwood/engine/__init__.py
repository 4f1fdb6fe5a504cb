"""The loop: draft, one forward pass of the target over the drafts, keep what it agrees with.

A ``Scheduler`` decides which ``Sequence``s run; the ``Executor`` of each makes its steps.
"""

from typing import TYPE_CHECKING

from draftwood.lazy import importer

if TYPE_CHECKING:
    from draftwood.drafters.overlap import Overlap
    from draftwood.engine.executors.executor import Executor
    from draftwood.engine.executors.in_turn import InTurn
    from draftwood.engine.executors.native import NativeSteps
    from draftwood.engine.executors.overlapped import Overlapped
    from draftwood.engine.executors.overlapping import Overlapping
    from draftwood.engine.method import Method
    from draftwood.engine.options import Bound, FinishReason, Options, StopCheck, StopRule
    from draftwood.engine.parallel_sampling import ParallelSampling
    from draftwood.engine.scheduler import Scheduler, generate, generate_batch, run_all
    from draftwood.engine.sequence import Sequence
    from draftwood.engine.task import Event, Limits, OwnPass, SequenceStatus, StepBudget, Task
    from draftwood.models.model import ModelInput

_HOMES = {
    "draftwood.drafters.overlap": ("Overlap",),
    "draftwood.engine.executors.executor": ("Executor",),
    "draftwood.engine.executors.in_turn": ("InTurn",),
    "draftwood.engine.executors.native": ("NativeSteps",),
    "draftwood.engine.executors.overlapped": ("Overlapped",),
    "draftwood.engine.executors.overlapping": ("Overlapping",),
    "draftwood.engine.method": ("Method",),
    "draftwood.engine.options": ("Bound", "FinishReason", "Options", "StopCheck", "StopRule"),
    "draftwood.engine.parallel_sampling": ("ParallelSampling",),
    "draftwood.engine.scheduler": ("Scheduler", "generate", "generate_batch", "run_all"),
    "draftwood.engine.sequence": ("Sequence",),
    "draftwood.engine.task": (
        *("Event", "Limits", "OwnPass", "SequenceStatus", "StepBudget", "Task"),
    ),
    "draftwood.models.model": ("ModelInput",),
}

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

__getattr__ = importer(__name__, _HOMES)
