"""Methods that draft with a second, smaller model.

Default trees have six nodes: a pass of a CPU over seven rows takes twice the time of one row
(SmolLM2-135M in int8), and over the 16 to 21 nodes of the papers' trees three to four times.
"""

from draftwood.drafters import DraftModel
from draftwood.methods.composition import MethodSpec
from draftwood.shapes import BestFirst, Independent, Sequoia, StochasticBeam, Widths
from draftwood.verifiers import Block, GreedyPlusOne, KSeq, Match, Rejection, Traversal

RECIPES = (
    MethodSpec(
        "speculative",
        "a chain drawn from a draft model",
        "Leviathan et al. 2023, arXiv:2211.17192",
        DraftModel,
        Widths((1, 1, 1, 1)),
        Rejection(),
    ),
    MethodSpec(
        "block",
        "the same chain, tested as a whole",
        "Sun et al. 2025, arXiv:2403.10444",
        DraftModel,
        Widths((1, 1, 1, 1)),
        Block(),
    ),
    MethodSpec(
        "spectr",
        "independent chains, chosen by optimal transport",
        "Sun et al. 2023, arXiv:2310.15141",
        DraftModel,
        Independent(2, 3),
        KSeq(),
    ),
    MethodSpec(
        "specinfer",
        "a tree drawn independently, multi-step rejection",
        "Miao et al. 2024, arXiv:2305.09781",
        DraftModel,
        Widths((2, 1, 1), "independent"),
        Rejection(),
    ),
    MethodSpec(
        "rsd-c",
        "a tree drawn without replacement, recursive rejection",
        "Jeon et al. 2024, arXiv:2402.14160",
        DraftModel,
        Widths((2, 1, 1)),
        Rejection(),
    ),
    MethodSpec(
        "rsd-s",
        "a stochastic beam, recursive rejection",
        "Jeon et al. 2024, arXiv:2402.14160",
        DraftModel,
        StochasticBeam(2, 3),
        Rejection(),
    ),
    MethodSpec(
        "traversal",
        "a stochastic beam, tested from its leaves upwards",
        "Weng et al. 2025, arXiv:2505.12398",
        DraftModel,
        StochasticBeam(2, 3),
        Traversal(),
    ),
    MethodSpec(
        "greedy-plus-one",
        "the likeliest tokens and one drawn one",
        "Hu et al. 2025, arXiv:2502.18779",
        DraftModel,
        Widths((2, 1, 1), "greedy-plus-one"),
        GreedyPlusOne(),
    ),
    MethodSpec(
        "sequoia",
        "the tree with the best expected yield",
        "Chen et al. 2024, arXiv:2402.12374",
        DraftModel,
        Sequoia(budget=6),
        Rejection(),
    ),
    MethodSpec(
        "eagle-2-tree",
        "the likeliest nodes of a draft model's tree",
        "Li et al. 2024, arXiv:2406.16858",
        DraftModel,
        BestFirst(4, 3, 6),
        Match(),
    ),
)
