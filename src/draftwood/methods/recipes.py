"""Published methods as combinations of a drafter, a shape and a verifier: a method's one line."""

from dataclasses import dataclass

from draftwood.drafters import (
    Aded,
    CtcDrafter,
    Drafter,
    DraftModel,
    DynamicExit,
    Eagle,
    EarlyExit,
    FourBitShadow,
    Hydra,
    LayerSearch,
    LayerSkip,
    Lm,
    Medusa,
    MultiSource,
    Nothing,
    PromptLookup,
    Stand,
    SuffixDecoding,
    TokenRecycling,
    Windowed,
)
from draftwood.drafters.draft_vocabulary import small_tree
from draftwood.drafters.token_recycling import published_tree
from draftwood.engine.method import Lossy, Promise, promise_of, require_lossy
from draftwood.shapes import BestFirst, Independent, Sequoia, Shape, StochasticBeam, Widths
from draftwood.verifiers import (
    Block,
    GreedyPlusOne,
    KSeq,
    Match,
    Rejection,
    Traversal,
    Typical,
    Verifier,
)


@dataclass(frozen=True, eq=False)
class Recipe:
    """How to build a published method.

    Attributes:
        name: as given to ``--method``.
        summary: one line.
        source: authors, year, arXiv id or address.
        drafter: what it drafts with; its class says what it needs and uses.
        shape: default tree, for drafters that take one.
        verifier: what decides.
        otherwise: what it promises where it is not lossless.

    Raises:
        ValueError: where ``otherwise`` claims to be lossless.
    """

    name: str
    summary: str
    source: str
    drafter: type[Drafter]
    shape: Shape | None
    verifier: Verifier
    otherwise: Lossy = "trades quality"

    def __post_init__(self) -> None:
        require_lossy(self.otherwise)

    @property
    def promise(self) -> Promise:
        """What the method promises of its text, known before it is built."""
        return promise_of(self.drafter.labels(self.shape), self.verifier, self.otherwise)

    @property
    def lossless(self) -> bool:
        """Whether the text has the distribution that the model gives it."""
        return self.promise == "lossless"


RECIPES = (
    Recipe(
        "auto",
        "several sources that need no second model, in a tree as large as pays",
        "after Hu et al. 2024, arXiv:2411.10666 and RACER 2026, arXiv:2604.14885",
        MultiSource,
        None,
        Match(),
    ),
    Recipe("plain", "one token per run, no draft tokens", "the base line", Nothing, None, Match()),
    Recipe(
        "speculative",
        "a chain drawn from a draft model",
        "Leviathan et al. 2023, arXiv:2211.17192",
        DraftModel,
        Widths((1, 1, 1, 1)),
        Rejection(),
    ),
    Recipe(
        "block",
        "the same chain, tested as a whole",
        "Sun et al. 2024, arXiv:2403.10444",
        DraftModel,
        Widths((1, 1, 1, 1)),
        Block(),
    ),
    Recipe(
        "spectr",
        "independent chains, chosen by optimal transport",
        "Sun et al. 2023, arXiv:2310.15141",
        DraftModel,
        Independent(3, 4),
        KSeq(),
    ),
    Recipe(
        "specinfer",
        "a tree drawn independently, multi-step rejection",
        "Miao et al. 2024, arXiv:2305.09781",
        DraftModel,
        Widths((3, 1, 1, 1), "independent"),
        Rejection(),
    ),
    Recipe(
        "rsd-c",
        "a tree drawn without replacement, recursive rejection",
        "Jeon et al. 2024, arXiv:2402.14160",
        DraftModel,
        Widths((3, 2, 1, 1)),
        Rejection(),
    ),
    Recipe(
        "rsd-s",
        "a stochastic beam, recursive rejection",
        "Jeon et al. 2024, arXiv:2402.14160",
        DraftModel,
        StochasticBeam(4, 4),
        Rejection(),
    ),
    Recipe(
        "traversal",
        "a stochastic beam, tested from its leaves upwards",
        "Weng et al. 2025, arXiv:2505.12398",
        DraftModel,
        StochasticBeam(4, 4),
        Traversal(),
    ),
    Recipe(
        "greedy-plus-one",
        "the likeliest tokens and one drawn one",
        "Hu et al. 2025, arXiv:2502.18779",
        DraftModel,
        Widths((3, 2, 1, 1), "greedy-plus-one"),
        GreedyPlusOne(),
    ),
    Recipe(
        "sequoia",
        "the tree with the best expected yield",
        "Chen et al. 2024, arXiv:2402.12374",
        DraftModel,
        Sequoia(),
        Rejection(),
    ),
    Recipe(
        "eagle-2-tree",
        "the likeliest nodes of a draft model's tree",
        "Li et al. 2024, arXiv:2406.16858",
        DraftModel,
        BestFirst(4, 4, 16),
        Match(),
    ),
    Recipe(
        "typical",
        "the likeliest nodes, accepted where they look typical; changes what the model says",
        "Cai et al. 2024, arXiv:2401.10774",
        DraftModel,
        BestFirst(4, 4, 16),
        Typical(),
    ),
    Recipe(
        "lookup",
        "copies what followed the newest tokens before",
        "Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding",
        PromptLookup,
        None,
        Match(),
    ),
    Recipe(
        "recycling",
        "a tree of what the model thought likely after each token",
        "Luo et al. 2024, arXiv:2408.08696",
        TokenRecycling,
        published_tree(),
        Match(),
    ),
    Recipe(
        "suffix",
        "copies what followed the longest match, in a tree as large as pays",
        "Oliaro et al. 2024, arXiv:2411.04975; Hu et al. 2024, arXiv:2411.10666",
        SuffixDecoding,
        None,
        Match(),
    ),
    Recipe(
        "stand",
        "a tree drawn from n-gram tables of the model's own probabilities",
        "Song et al. 2025, arXiv:2506.04708",
        Stand,
        None,
        Rejection(),
    ),
    Recipe(
        "aded",
        "the likeliest continuations in an adaptive tri-gram table",
        "Liu et al. 2024, arXiv:2407.12021",
        Aded,
        None,
        Match(),
    ),
    Recipe(
        "layer-skip",
        "the model without some of its layers drafts",
        "Zhang et al. 2024, arXiv:2309.08168",
        LayerSkip,
        Widths((1, 1, 1)),
        Rejection(),
    ),
    Recipe(
        "layer-search",
        "the model without the parts of its layers that a search finds it misses least",
        "Chen et al. 2025, arXiv:2505.24196; Xia et al. 2025, arXiv:2410.06916",
        LayerSearch,
        Widths((1, 1, 1)),
        Rejection(),
    ),
    Recipe(
        "early-exit",
        "the model's first layers draft, and verification goes on behind them",
        "after Elhoushi et al. 2024, arXiv:2404.16710",
        EarlyExit,
        Widths((1, 1, 1)),
        Rejection(),
    ),
    Recipe(
        "ppd",
        "successors that the first layers hold likely, verified while the other layers run",
        "after Yang et al. 2023, arXiv:2307.05908",
        EarlyExit,
        Widths((3,)),
        Rejection(),
    ),
    Recipe(
        "del",
        "as many of the first layers draft as many tokens as have paid so far",
        "Entezari Zarch et al. 2025, arXiv:2504.05598",
        DynamicExit,
        None,
        Rejection(),
    ),
    Recipe(
        "windowed",
        "the model drafts, reading only the first and the newest of a long text",
        "after Yang et al. 2025, arXiv:2502.17421; Xiao et al. 2023, arXiv:2309.17453",
        Windowed,
        Widths((1, 1, 1, 1)),
        Rejection(),
    ),
    Recipe(
        "shadow",
        "the model drafts with its weights in 4 bits",
        "after Georganas et al. 2025, arXiv:2503.13565; Tiwari et al. 2025, arXiv:2502.10424",
        FourBitShadow,
        Widths((1, 1, 1, 1)),
        Rejection(),
    ),
    Recipe(
        "eagle",
        "the likeliest nodes of a tree that a trained head drafts from the model's hidden states",
        "Li et al. 2025, arXiv:2503.01840; Li et al. 2024, arXiv:2406.16858",
        Eagle,
        small_tree(),
        Match(),
    ),
    Recipe(
        "eagle-rsd",
        "a tree drawn from the same head without replacement, recursive rejection",
        "Li et al. 2025, arXiv:2503.01840; Jeon et al. 2024, arXiv:2402.14160",
        Eagle,
        Widths((2, 1, 1)),
        Rejection(),
    ),
    Recipe(
        "medusa",
        "the likeliest nodes of trained heads, one for each of the next places",
        "after Cai et al. 2024, arXiv:2401.10774",
        Medusa,
        small_tree(),
        Match(),
    ),
    Recipe(
        "hydra",
        "the same, each head seeing what was drafted before it",
        "after Ankner et al. 2024, arXiv:2402.05109",
        Hydra,
        small_tree(),
        Match(),
    ),
    Recipe(
        "ctc",
        "the likeliest texts of frames that a trained head drafts side by side",
        "after Wen et al. 2024, arXiv:2412.00061",
        CtcDrafter,
        None,
        Match(),
    ),
    Recipe(
        "ctc-rsd",
        "a tree drawn from the same frames without replacement, recursive rejection",
        "after Wen et al. 2024, arXiv:2412.00061; Jeon et al. 2024, arXiv:2402.14160",
        CtcDrafter,
        Widths((2, 1, 1)),
        Rejection(),
    ),
    Recipe(
        "lm",
        "the likeliest nodes of a tree that a distilled draft LM writes",
        "Zhou et al. 2024, arXiv:2310.08461; Li et al. 2024, arXiv:2406.16858",
        Lm,
        small_tree(),
        Match(),
    ),
    Recipe(
        "lm-rsd",
        "a tree drawn from the same LM without replacement, recursive rejection",
        "Zhou et al. 2024, arXiv:2310.08461; Jeon et al. 2024, arXiv:2402.14160",
        Lm,
        Widths((2, 1, 1)),
        Rejection(),
    ),
)
