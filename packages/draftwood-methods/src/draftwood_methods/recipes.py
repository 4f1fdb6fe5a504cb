"""Methods that do not pay on their own: a method is a drafter, a shape and a verifier."""

from draftwood import methods
from draftwood.drafters.draft_model import DraftModel
from draftwood.shapes import BestFirst, Widths
from draftwood.verifiers import Match, Rejection
from draftwood_methods.drafters import Aded, LayerSkip, Stand
from draftwood_methods.drafters.token_recycling import TokenRecycling, published_tree
from draftwood_methods.of_heads import OF_HEADS
from draftwood_methods.of_parts import OF_PARTS
from draftwood_methods.of_several import OF_SEVERAL
from draftwood_methods.verifiers import Typical

RECIPES = (
    methods.MethodSpec(
        "typical",
        "the likeliest nodes, accepted where they look typical; changes what the model says",
        "Cai et al. 2024, arXiv:2401.10774",
        DraftModel,
        BestFirst(4, 3, 6),
        Typical(),
    ),
    methods.MethodSpec(
        "recycling",
        "a tree of what the model thought likely after each token",
        "Luo et al. 2024, arXiv:2408.08696",
        TokenRecycling,
        published_tree(),
        Match(),
    ),
    methods.MethodSpec(
        "stand",
        "a tree drawn from n-gram tables of the model's own probabilities",
        "Song et al. 2025, arXiv:2506.04708",
        Stand,
        None,
        Rejection(),
    ),
    methods.MethodSpec(
        "aded",
        "the likeliest continuations in an adaptive tri-gram table",
        "Liu et al. 2024, arXiv:2407.12021",
        Aded,
        None,
        Match(),
    ),
    methods.MethodSpec(
        "layer-skip",
        "the model without some of its layers drafts",
        "Zhang et al. 2024, arXiv:2309.08168",
        LayerSkip,
        Widths((1, 1, 1)),
        Rejection(),
    ),
    *OF_HEADS,
    *OF_PARTS,
    *OF_SEVERAL,
)
