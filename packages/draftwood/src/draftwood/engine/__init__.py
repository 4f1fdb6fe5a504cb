"""The loop: draft, one forward pass of the target over the drafts, keep what it agrees with."""

from draftwood.engine.answers import Answers
from draftwood.engine.batch import Batch, generate, generate_batch, run_all
from draftwood.engine.decoding import Decoding
from draftwood.engine.method import Method
from draftwood.engine.options import Bound, FinishReason, Options, StopCheck, StopRule
from draftwood.engine.overlap import Overlap, Overlapped
from draftwood.engine.task import Event, Input, Limits, OwnPass, Task

__all__ = [
    "Answers",
    "Batch",
    "Bound",
    "Decoding",
    "Event",
    "FinishReason",
    "Input",
    "Limits",
    "Method",
    "Options",
    "Overlap",
    "Overlapped",
    "OwnPass",
    "StopCheck",
    "StopRule",
    "Task",
    "generate",
    "generate_batch",
    "run_all",
]
