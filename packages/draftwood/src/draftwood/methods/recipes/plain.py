"""The method that all are compared with."""

from draftwood.drafters import Nothing
from draftwood.methods.composition import MethodSpec
from draftwood.verifiers import Match

RECIPES = (
    MethodSpec(
        "plain", "one token per pass, no draft tokens", "the base line", Nothing, None, Match()
    ),
)
