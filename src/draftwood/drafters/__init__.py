"""Where guesses come from: one file per published method."""

from draftwood.drafters.aded import Aded
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.layer_skip import LayerSkip
from draftwood.drafters.multi_source import Combined
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.prompt_lookup import PromptLookup
from draftwood.drafters.stand import Stand
from draftwood.drafters.suffix_decoding import SuffixDecoding
from draftwood.drafters.token_recycling import TokenRecycling
from draftwood.interfaces.drafter import Accepted, Drafter, DraftSession, Request

__all__ = [
    "Accepted",
    "Aded",
    "Combined",
    "DraftModel",
    "DraftSession",
    "Drafter",
    "LayerSkip",
    "Nothing",
    "PromptLookup",
    "Request",
    "Stand",
    "SuffixDecoding",
    "TokenRecycling",
]
