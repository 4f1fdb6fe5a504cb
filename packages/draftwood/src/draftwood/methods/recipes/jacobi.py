"""Methods that draft from the rows that the last pass gave for the next places."""

from draftwood.drafters import JacobiSampled, RacedJacobi
from draftwood.methods.composition import MethodSpec
from draftwood.verifiers import Grouped, Match, Rejection

RECIPES = (
    MethodSpec(
        "sjd",
        "a chain drawn from the last pass's rows, rejection sampling",
        "Teng et al. 2024, arXiv:2410.01699",
        JacobiSampled,
        None,
        Rejection(),
    ),
    MethodSpec(
        "raced-jacobi",
        "the same rows' winners of the races that the seed decides",
        "after Wiggers and Hoogeboom 2020, arXiv:2002.09928; So et al. 2025, arXiv:2510.24211",
        RacedJacobi,
        None,
        Match(),
    ),
    MethodSpec(
        "gsd",
        "the first chain, accepted by groups of tokens; changes what the model says",
        "So et al. 2025, arXiv:2508.07747",
        JacobiSampled,
        None,
        Grouped(),
    ),
)
