"""Methods whose guesses are drawn from what the last pass said of their places."""

from draftwood.drafters import JacobiSampled, RacedJacobi
from draftwood.methods.composition import MethodSpec
from draftwood.verifiers import Grouped, Match, Rejection

RECIPES = (
    MethodSpec(
        "sjd",
        "guesses drawn from the rows of the last pass, rejection sampling",
        "Teng et al. 2024, arXiv:2410.01699",
        JacobiSampled,
        None,
        Rejection(),
    ),
    MethodSpec(
        "raced-jacobi",
        "guesses that the seed's race numbers choose from the rows of the last pass",
        "after Wiggers and Hoogeboom 2020, arXiv:2002.09928; So et al. 2025, arXiv:2510.24211",
        RacedJacobi,
        None,
        Match(),
    ),
    MethodSpec(
        "gsd",
        "the same guesses, kept where tokens like them are likely; changes what the model says",
        "So et al. 2025, arXiv:2508.07747",
        JacobiSampled,
        None,
        Grouped(),
    ),
)
