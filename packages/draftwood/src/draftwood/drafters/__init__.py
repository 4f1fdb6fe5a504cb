"""Where draft tokens come from: one file per published method."""

from typing import TYPE_CHECKING

from draftwood.lazy import importer

if TYPE_CHECKING:
    from draftwood.drafters.ctc_drafter import CtcDrafter
    from draftwood.drafters.draft_model import DraftModel
    from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
    from draftwood.drafters.eagle import Eagle
    from draftwood.drafters.lm import Lm
    from draftwood.drafters.medusa import Hydra, Medusa
    from draftwood.drafters.multi_source import MultiSource, WithShadow
    from draftwood.drafters.nothing import Nothing
    from draftwood.drafters.prompt_lookup import PromptLookup
    from draftwood.drafters.shadow import FourBitShadow
    from draftwood.drafters.suffix_decoding import SuffixDecoding
    from draftwood.drafters.token_recycling import TokenRecycling

_HOMES = {
    "draftwood.drafters.ctc_drafter": ("CtcDrafter",),
    "draftwood.drafters.draft_model": ("DraftModel",),
    "draftwood.drafters.eagle": ("Eagle",),
    "draftwood.drafters.lm": ("Lm",),
    "draftwood.drafters.medusa": ("Hydra", "Medusa"),
    "draftwood.drafters.multi_source": ("MultiSource", "WithShadow"),
    "draftwood.drafters.nothing": ("Nothing",),
    "draftwood.drafters.prompt_lookup": ("PromptLookup",),
    "draftwood.drafters.shadow": ("FourBitShadow",),
    "draftwood.drafters.suffix_decoding": ("SuffixDecoding",),
    "draftwood.drafters.token_recycling": ("TokenRecycling",),
    "draftwood.drafters.drafter": ("Drafter", "DraftRequest", "DraftSession", "VerifiedTree"),
}

__all__ = [
    "CtcDrafter",
    "DraftModel",
    "DraftRequest",
    "DraftSession",
    "Drafter",
    "Eagle",
    "FourBitShadow",
    "Hydra",
    "Lm",
    "Medusa",
    "MultiSource",
    "Nothing",
    "PromptLookup",
    "SuffixDecoding",
    "TokenRecycling",
    "VerifiedTree",
    "WithShadow",
]

__getattr__ = importer(__name__, _HOMES)
