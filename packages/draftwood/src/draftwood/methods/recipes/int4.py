"""Methods that draft with the target's own weights in 4 bits."""

from draftwood.drafters import Int4SelfDraft, WithInt4SelfDraft
from draftwood.methods.composition import MethodSpec
from draftwood.shapes import Widths
from draftwood.verifiers import Match, Rejection

RECIPES = (
    MethodSpec(
        "shadow",
        "the model drafts with its weights in 4 bits",
        "after Georganas et al. 2025, arXiv:2503.13565; Tiwari et al. 2025, arXiv:2502.10424",
        Int4SelfDraft,
        Widths((1, 1, 1, 1)),
        Rejection(),
    ),
    MethodSpec(
        "auto-shadow",
        "the sources of auto, and the model's weights in 4 bits where a pass over them pays",
        "after Chen et al. 2023, arXiv:2312.11462; Georganas et al. 2025, arXiv:2503.13565",
        WithInt4SelfDraft,
        None,
        Match(),
    ),
)
