"""Shapes of draft trees: one file per published method."""

from typing import TYPE_CHECKING

from draftwood.lazy import importer

if TYPE_CHECKING:
    from draftwood.shapes.best_first import BestFirst
    from draftwood.shapes.independent import Independent
    from draftwood.shapes.paths import Paths
    from draftwood.shapes.sequoia import Sequoia
    from draftwood.shapes.shape import Expand, Shape
    from draftwood.shapes.stochastic_beam import StochasticBeam
    from draftwood.shapes.widths import Widths

_HOMES = {
    "draftwood.shapes.shape": ("Expand", "Shape"),
    "draftwood.shapes.best_first": ("BestFirst",),
    "draftwood.shapes.independent": ("Independent",),
    "draftwood.shapes.paths": ("Paths",),
    "draftwood.shapes.sequoia": ("Sequoia",),
    "draftwood.shapes.stochastic_beam": ("StochasticBeam",),
    "draftwood.shapes.widths": ("Widths",),
}

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

__getattr__ = importer(__name__, _HOMES)
