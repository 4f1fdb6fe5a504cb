"""Drafters, which propose draft tokens: one file per published method."""

from typing import TYPE_CHECKING

from draftwood.lazy import importer

if TYPE_CHECKING:
    from draftwood.drafters.ctc_drafter import CtcDrafter, CtcPaper, CtcRaw
    from draftwood.drafters.draft_model import DraftModel
    from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
    from draftwood.drafters.eagle import Eagle
    from draftwood.drafters.int4_self_draft import Int4SelfDraft
    from draftwood.drafters.jacobi_sampled import JacobiSampled, RacedJacobi
    from draftwood.drafters.lm import Lm
    from draftwood.drafters.medusa import Hydra, Medusa
    from draftwood.drafters.mtp import Mtp
    from draftwood.drafters.multi_source import MultiSource, WithInt4SelfDraft
    from draftwood.drafters.nothing import Nothing
    from draftwood.drafters.prompt_lookup import PromptLookup
    from draftwood.drafters.suffix_decoding import SuffixDecoding
    from draftwood.drafters.window_starts import StartFromLeft, StartUniform

_HOMES = {
    "draftwood.drafters.ctc_drafter": ("CtcDrafter", "CtcPaper", "CtcRaw"),
    "draftwood.drafters.draft_model": ("DraftModel",),
    "draftwood.drafters.eagle": ("Eagle",),
    "draftwood.drafters.jacobi_sampled": ("JacobiSampled", "RacedJacobi"),
    "draftwood.drafters.lm": ("Lm",),
    "draftwood.drafters.medusa": ("Hydra", "Medusa"),
    "draftwood.drafters.mtp": ("Mtp",),
    "draftwood.drafters.multi_source": ("MultiSource", "WithInt4SelfDraft"),
    "draftwood.drafters.nothing": ("Nothing",),
    "draftwood.drafters.prompt_lookup": ("PromptLookup",),
    "draftwood.drafters.int4_self_draft": ("Int4SelfDraft",),
    "draftwood.drafters.suffix_decoding": ("SuffixDecoding",),
    "draftwood.drafters.window_starts": ("StartFromLeft", "StartUniform"),
    "draftwood.drafters.drafter": ("Drafter", "DraftRequest", "DraftSession", "VerifiedTree"),
}

__all__ = [
    "CtcDrafter",
    "CtcPaper",
    "CtcRaw",
    "DraftModel",
    "DraftRequest",
    "DraftSession",
    "Drafter",
    "Eagle",
    "Hydra",
    "Int4SelfDraft",
    "JacobiSampled",
    "Lm",
    "Medusa",
    "Mtp",
    "MultiSource",
    "Nothing",
    "PromptLookup",
    "RacedJacobi",
    "StartFromLeft",
    "StartUniform",
    "SuffixDecoding",
    "VerifiedTree",
    "WithInt4SelfDraft",
]

__getattr__ = importer(__name__, _HOMES)
