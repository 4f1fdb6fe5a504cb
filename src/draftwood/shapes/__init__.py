"""Which draft tokens deserve a place in the tree: one file per published method."""

from draftwood.interfaces.shape import Expand, Shape
from draftwood.shapes.best_first import BestFirst
from draftwood.shapes.independent import Independent
from draftwood.shapes.merged_graph import MergedGraph
from draftwood.shapes.paths import Paths
from draftwood.shapes.sequoia import Sequoia
from draftwood.shapes.stochastic_beam import StochasticBeam
from draftwood.shapes.until import Until
from draftwood.shapes.widths import Widths

__all__ = [
    "BestFirst",
    "Expand",
    "Independent",
    "MergedGraph",
    "Paths",
    "Sequoia",
    "Shape",
    "StochasticBeam",
    "Until",
    "Widths",
]
