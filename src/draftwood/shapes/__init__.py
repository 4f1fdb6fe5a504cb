"""Which draft tokens deserve a place in the tree: one file per published method."""

from draftwood.interfaces.shape import Expand, Shape
from draftwood.shapes.best_first import BestFirst
from draftwood.shapes.independent import Independent
from draftwood.shapes.paths import Paths
from draftwood.shapes.sequoia import Sequoia
from draftwood.shapes.stochastic_beam import StochasticBeam
from draftwood.shapes.widths import Widths

__all__ = [
    "BestFirst",
    "Expand",
    "Independent",
    "Paths",
    "Sequoia",
    "Shape",
    "StochasticBeam",
    "Widths",
]
