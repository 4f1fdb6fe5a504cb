"""Where guesses come from: one file per published method."""

from draftwood.drafters.aded import Aded
from draftwood.drafters.base import Accepted, Drafter, DraftSession, Request
from draftwood.drafters.bigram_prior import BigramPrior
from draftwood.drafters.combined import Combined
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.earlier_texts import EarlierTexts
from draftwood.drafters.layer_skip import LayerSkip
from draftwood.drafters.n_grams import NGrams
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.prompt_lookup import PromptLookup
from draftwood.drafters.stand import Stand
from draftwood.drafters.suffix import Suffix
from draftwood.drafters.suffix_decoding import SuffixDecoding
from draftwood.drafters.token_recycling import TokenRecycling

__all__ = [
    "Accepted",
    "Aded",
    "BigramPrior",
    "Combined",
    "DraftModel",
    "DraftSession",
    "Drafter",
    "EarlierTexts",
    "LayerSkip",
    "NGrams",
    "Nothing",
    "PromptLookup",
    "Request",
    "Stand",
    "Suffix",
    "SuffixDecoding",
    "TokenRecycling",
]
