"""Published methods by name.

What they say of themselves costs nothing; their parts are imported when they are first used.
"""

from typing import TYPE_CHECKING

from draftwood.lazy import importer
from draftwood.methods.listings import Listing, listing, listings, lossless_names
from draftwood.methods.needs import lacking, require, spec, taken

if TYPE_CHECKING:
    from draftwood.engine.method import Method, Promise
    from draftwood.methods.composition import MethodSpec
    from draftwood.methods.measured import MeasuredSpeed
    from draftwood.methods.parts import Parts, PartsWarning, known_parts
    from draftwood.methods.registry import build, known, recipe
    from draftwood.methods.trees import require_tree, shape_of, trees_of

_HOMES = {
    "draftwood.engine.method": ("Method", "Promise"),
    "draftwood.methods.composition": ("MethodSpec",),
    "draftwood.methods.measured": ("MeasuredSpeed",),
    "draftwood.methods.parts": ("Parts", "PartsWarning", "known_parts"),
    "draftwood.methods.registry": ("build", "known", "recipe"),
    "draftwood.methods.trees": ("require_tree", "shape_of", "trees_of"),
}

__all__ = [
    "Listing",
    "MeasuredSpeed",
    "Method",
    "MethodSpec",
    "Parts",
    "PartsWarning",
    "Promise",
    "build",
    "known",
    "known_parts",
    "lacking",
    "listing",
    "listings",
    "lossless_names",
    "recipe",
    "require",
    "require_tree",
    "shape_of",
    "spec",
    "taken",
    "trees_of",
]

__getattr__ = importer(__name__, _HOMES)
