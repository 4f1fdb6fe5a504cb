"""Published methods that draft with trained heads of their own."""

from draftwood import methods
from draftwood.shapes import BestFirst, Widths
from draftwood.verifiers import Match, Rejection
from draftwood_methods.drafters.dflash import Dflash
from draftwood_methods.drafters.longspec import Longspec
from draftwood_methods.drafters.masked_block import MaskedBlock, MaskedInPass
from draftwood_methods.drafters.s2d import S2d
from draftwood_methods.drafters.specdec import Specdec
from draftwood_methods.drafters.specdec_plus_plus import SpecDecPlusPlus
from draftwood_methods.shapes.gated import Gated
from draftwood_methods.verifiers.relaxed import Relaxed

OF_HEADS = (
    methods.MethodSpec(
        "specdec++",
        "a chain of a draft LM that stops where a trained head holds a rejection likely",
        "Huang et al. 2024, arXiv:2405.19715",
        SpecDecPlusPlus,
        Gated(),
        Rejection(),
    ),
    methods.MethodSpec(
        "s2d",
        "a chain of nested draft LMs, each token from the smallest that is sure",
        "Kavehzadeh et al. 2024, arXiv:2407.01955",
        S2d,
        Gated(),
        Rejection(),
    ),
    methods.MethodSpec(
        "dflash",
        "the likeliest nodes of a block that mask tokens draft in one pass",
        "after Chen et al. 2026, arXiv:2602.06036",
        Dflash,
        BestFirst(depth=3, width=3, size=4),
        Match(),
    ),
    methods.MethodSpec(
        "dflash-rsd",
        "a tree drawn from the same block without replacement, recursive rejection",
        "after Chen et al. 2026, arXiv:2602.06036; Jeon et al. 2024, arXiv:2402.14160",
        Dflash,
        Widths((2, 1, 1)),
        Rejection(),
    ),
    methods.MethodSpec(
        "specdec",
        "a chain drawn from an independent drafter, one query for each of the next places",
        "after Xia et al. 2022, arXiv:2203.16487",
        Specdec,
        Widths((1, 1, 1, 1)),
        Rejection(),
    ),
    methods.MethodSpec(
        "specdec-relaxed",
        "the same chain, kept where it is nearly the likeliest; changes what the model says",
        "Xia et al. 2022, arXiv:2203.16487",
        Specdec,
        Widths((1, 1, 1, 1)),
        Relaxed(),
    ),
    methods.MethodSpec(
        "longspec",
        "the likeliest nodes of a head that reads a window and the model's own cache",
        "after Yang et al. 2025, arXiv:2502.17421",
        Longspec,
        BestFirst(depth=3, width=3, size=4),
        Match(),
    ),
    methods.MethodSpec(
        "masked-block",
        "mask rows of the model itself draft, under an adapter of their own",
        "after Samragh et al. 2025, arXiv:2507.11851",
        MaskedBlock,
        Widths((1, 1, 1)),
        Rejection(),
    ),
    methods.MethodSpec(
        "masked-in-pass",
        "the same rows, below the nodes that the model verifies",
        "after Lin et al. 2024, arXiv:2401.12522",
        MaskedInPass,
        Widths((1, 1)),
        Rejection(),
    ),
)
