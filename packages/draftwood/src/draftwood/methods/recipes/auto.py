"""The method that pays everywhere."""

from draftwood.drafters import MultiSource
from draftwood.methods.composition import MethodSpec
from draftwood.verifiers import Match

RECIPES = (
    MethodSpec(
        "auto",
        "several sources that need no second model, in a tree as large as pays",
        "after Hu et al. 2024, arXiv:2411.10666 and RACER 2026, arXiv:2604.14885",
        MultiSource,
        None,
        Match(),
    ),
)
