"""Where draft tokens come from: one file per published method."""

from typing import TYPE_CHECKING

from draftwood.lazy import importer

if TYPE_CHECKING:
    from draftwood.drafters.aded import Aded
    from draftwood.drafters.cascade import Cascade, LenientCascade
    from draftwood.drafters.ctc_drafter import CtcDrafter
    from draftwood.drafters.draft_model import DraftModel
    from draftwood.drafters.dynamic_exit import DynamicExit
    from draftwood.drafters.eagle import Eagle
    from draftwood.drafters.early_exit import EarlyExit
    from draftwood.drafters.horizontal import Horizontal
    from draftwood.drafters.input_guided import InputGuided
    from draftwood.drafters.jacobi import Jacobi
    from draftwood.drafters.layer_search import LayerSearch
    from draftwood.drafters.layer_skip import LayerSkip
    from draftwood.drafters.lm import Lm
    from draftwood.drafters.lookahead import Lookahead
    from draftwood.drafters.medusa import Hydra, Medusa
    from draftwood.drafters.merged import MergedDrafters, MergedDrawn
    from draftwood.drafters.multi_source import MultiSource, WithShadow
    from draftwood.drafters.nothing import Nothing
    from draftwood.drafters.prompt_lookup import PromptLookup
    from draftwood.drafters.pruned import Pruned
    from draftwood.drafters.shadow import FourBitShadow
    from draftwood.drafters.stand import Stand
    from draftwood.drafters.suffix_decoding import SuffixDecoding
    from draftwood.drafters.token_recycling import TokenRecycling
    from draftwood.drafters.windowed import Windowed
    from draftwood.interfaces.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree

_HOMES = {
    "draftwood.drafters.aded": ("Aded",),
    "draftwood.drafters.cascade": ("Cascade", "LenientCascade"),
    "draftwood.drafters.ctc_drafter": ("CtcDrafter",),
    "draftwood.drafters.draft_model": ("DraftModel",),
    "draftwood.drafters.dynamic_exit": ("DynamicExit",),
    "draftwood.drafters.eagle": ("Eagle",),
    "draftwood.drafters.early_exit": ("EarlyExit",),
    "draftwood.drafters.horizontal": ("Horizontal",),
    "draftwood.drafters.input_guided": ("InputGuided",),
    "draftwood.drafters.jacobi": ("Jacobi",),
    "draftwood.drafters.layer_search": ("LayerSearch",),
    "draftwood.drafters.layer_skip": ("LayerSkip",),
    "draftwood.drafters.lm": ("Lm",),
    "draftwood.drafters.lookahead": ("Lookahead",),
    "draftwood.drafters.medusa": ("Hydra", "Medusa"),
    "draftwood.drafters.merged": ("MergedDrafters", "MergedDrawn"),
    "draftwood.drafters.multi_source": ("MultiSource", "WithShadow"),
    "draftwood.drafters.nothing": ("Nothing",),
    "draftwood.drafters.prompt_lookup": ("PromptLookup",),
    "draftwood.drafters.pruned": ("Pruned",),
    "draftwood.drafters.shadow": ("FourBitShadow",),
    "draftwood.drafters.stand": ("Stand",),
    "draftwood.drafters.suffix_decoding": ("SuffixDecoding",),
    "draftwood.drafters.token_recycling": ("TokenRecycling",),
    "draftwood.drafters.windowed": ("Windowed",),
    "draftwood.interfaces.drafter": ("Drafter", "DraftRequest", "DraftSession", "VerifiedTree"),
}

__all__ = [
    "Aded",
    "Cascade",
    "CtcDrafter",
    "DraftModel",
    "DraftRequest",
    "DraftSession",
    "Drafter",
    "DynamicExit",
    "Eagle",
    "EarlyExit",
    "FourBitShadow",
    "Horizontal",
    "Hydra",
    "InputGuided",
    "Jacobi",
    "LayerSearch",
    "LayerSkip",
    "LenientCascade",
    "Lm",
    "Lookahead",
    "Medusa",
    "MergedDrafters",
    "MergedDrawn",
    "MultiSource",
    "Nothing",
    "PromptLookup",
    "Pruned",
    "Stand",
    "SuffixDecoding",
    "TokenRecycling",
    "VerifiedTree",
    "Windowed",
    "WithShadow",
]

__getattr__ = importer(__name__, _HOMES)
