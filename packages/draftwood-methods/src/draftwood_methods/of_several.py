"""Published methods that put drafters together, stop by estimates, or draft from the text's own
passes.
"""

from draftwood import methods
from draftwood.drafters.draft_model import DraftModel
from draftwood.shapes import Widths
from draftwood.verifiers import Match, Rejection
from draftwood_methods.drafters.cascade import Cascade, LenientCascade
from draftwood_methods.drafters.input_guided import InputGuided
from draftwood_methods.drafters.jacobi import Jacobi
from draftwood_methods.drafters.lookahead import Lookahead
from draftwood_methods.drafters.merged import MergedDrafters, MergedDrawn
from draftwood_methods.drafters.per_level import PerLevel
from draftwood_methods.shapes.merged_graph import MergedGraph
from draftwood_methods.shapes.raced import RacedChain
from draftwood_methods.shapes.until import Until
from draftwood_methods.verifiers.blockwise import TopN

OF_SEVERAL = (
    methods.MethodSpec(
        "until",
        "a chain from a draft model that stops where it is likely to be rejected",
        "Agrawal et al. 2024, arXiv:2410.18351; Huang et al. 2024, arXiv:2405.19715",
        DraftModel,
        Until(),
        Rejection(),
    ),
    methods.MethodSpec(
        "merged-graph",
        "the likeliest nodes of a draft model's tree, those that end alike run once",
        "Gong et al. 2024, arXiv:2407.16207",
        DraftModel,
        MergedGraph(4, 3, 6),
        Match(),
    ),
    methods.MethodSpec(
        "merged",
        "a draft model's chain and copies of earlier text in one tree",
        "after Miao et al. 2024, arXiv:2305.09781",
        MergedDrafters,
        RacedChain(),
        Match(),
    ),
    methods.MethodSpec(
        "merged-drawn",
        "chains drawn from a draft model and from n-gram tables, each tested against its own row",
        "after Miao et al. 2024, arXiv:2305.09781",
        MergedDrawn,
        Widths((1, 1, 1, 1)),
        Rejection(),
    ),
    methods.MethodSpec(
        "cascade",
        "a chain drawn from a draft model, which n-gram tables draft for",
        "Spector & Re 2023, arXiv:2308.04623; Chen et al. 2024, arXiv:2312.11462",
        Cascade,
        None,
        Rejection(),
    ),
    methods.MethodSpec(
        "lenient-cascade",
        "the same, the draft model keeping what is nearly as likely as what it drew",
        "Chen et al. 2024, arXiv:2312.11462",
        LenientCascade,
        None,
        Match(),
    ),
    methods.MethodSpec(
        "horizontal",
        "near tokens drawn from a draft model, far ones from n-gram tables",
        "Chen et al. 2024, arXiv:2312.11462",
        PerLevel,
        Widths((1, 1)),
        Rejection(),
    ),
    methods.MethodSpec(
        "jacobi",
        "what the last pass said below the token that it did not keep",
        "Santilli et al. 2023, arXiv:2305.10427",
        Jacobi,
        None,
        Match(),
    ),
    methods.MethodSpec(
        "lookahead",
        "n-grams that a window of parallel iterations gave",
        "Fu et al. 2024, arXiv:2402.02057",
        Lookahead,
        None,
        Match(),
    ),
    methods.MethodSpec(
        "input-guided",
        "a copy of the prompt, from where the answer stands in it",
        "Sun et al. 2021, arXiv:2106.04970",
        InputGuided,
        None,
        Match(),
    ),
    methods.MethodSpec(
        "top-n",
        "a draft model's chain, kept where it is among the likeliest; changes what the model says",
        "Stern et al. 2018, arXiv:1811.03115",
        DraftModel,
        Widths((1, 1, 1, 1)),
        TopN(),
    ),
)
