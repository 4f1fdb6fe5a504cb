"""Executors: they make the steps of a text, one file per way."""

from draftwood.engine.executors.executor import Executor
from draftwood.engine.executors.in_turn import InTurn
from draftwood.engine.executors.native import NativeSteps
from draftwood.engine.executors.overlapped import Overlapped
from draftwood.engine.executors.overlapping import Overlapping
from draftwood.engine.executors.starting import start_executor

__all__ = ["Executor", "InTurn", "NativeSteps", "Overlapped", "Overlapping", "start_executor"]
