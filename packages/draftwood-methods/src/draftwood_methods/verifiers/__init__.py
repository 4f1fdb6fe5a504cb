"""Lossy rules, for comparison alone: they never run unless asked for."""

from draftwood_methods.verifiers.blockwise import Distance, TopN
from draftwood_methods.verifiers.relaxed import Relaxed
from draftwood_methods.verifiers.typical import Typical

__all__ = ["Distance", "Relaxed", "TopN", "Typical"]
