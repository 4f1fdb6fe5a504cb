"""Shapes that do not pay on their own."""

from draftwood_methods.shapes.gated import Gated
from draftwood_methods.shapes.merged_graph import MergedGraph
from draftwood_methods.shapes.raced import RacedChain
from draftwood_methods.shapes.until import Until

__all__ = ["Gated", "MergedGraph", "RacedChain", "Until"]
