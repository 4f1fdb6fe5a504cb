"""Where guesses come from: one file per published method."""

from draftwood.drafters.base import Accepted, Drafter, DraftSession, Request
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.layer_skip import LayerSkip
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.prompt_lookup import PromptLookup
from draftwood.drafters.token_recycling import TokenRecycling

__all__ = [
    "Accepted",
    "DraftModel",
    "DraftSession",
    "Drafter",
    "LayerSkip",
    "Nothing",
    "PromptLookup",
    "Request",
    "TokenRecycling",
]
