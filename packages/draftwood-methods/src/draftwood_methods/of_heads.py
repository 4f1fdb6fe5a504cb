"""Published methods that draft with trained heads of their own."""

from draftwood.methods.composition import MethodSpec
from draftwood.shapes import BestFirst, Widths
from draftwood.verifiers import Match, Rejection
from draftwood_methods.drafters.longspec import Longspec
from draftwood_methods.drafters.specdec import Specdec
from draftwood_methods.verifiers.relaxed import Relaxed

OF_HEADS = (
    MethodSpec(
        "specdec",
        "a chain drawn from an independent drafter, one query for each of the next places",
        "after Xia et al. 2022, arXiv:2203.16487",
        Specdec,
        Widths((1, 1, 1, 1)),
        Rejection(),
    ),
    MethodSpec(
        "specdec-relaxed",
        "the same chain, kept where it is nearly the likeliest; changes what the model says",
        "Xia et al. 2022, arXiv:2203.16487",
        Specdec,
        Widths((1, 1, 1, 1)),
        Relaxed(),
    ),
    MethodSpec(
        "longspec",
        "the likeliest nodes of a head that reads a window and the model's own cache",
        "after Yang et al. 2025, arXiv:2502.17421",
        Longspec,
        BestFirst(depth=3, width=3, size=4),
        Match(),
    ),
)
