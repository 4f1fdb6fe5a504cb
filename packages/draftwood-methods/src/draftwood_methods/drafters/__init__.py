"""Drafters that do not pay on their own: one file per published method."""

from draftwood_methods.drafters.aded import Aded
from draftwood_methods.drafters.cascade import Cascade, LenientCascade
from draftwood_methods.drafters.dflash import Dflash
from draftwood_methods.drafters.dynamic_exit import DynamicExit
from draftwood_methods.drafters.early_exit import EarlyExit
from draftwood_methods.drafters.input_guided import InputGuided
from draftwood_methods.drafters.jacobi import Jacobi
from draftwood_methods.drafters.layer_search import LayerSearch
from draftwood_methods.drafters.layer_skip import LayerSkip
from draftwood_methods.drafters.longspec import Longspec
from draftwood_methods.drafters.lookahead import Lookahead
from draftwood_methods.drafters.masked_block import MaskedBlock, MaskedInPass
from draftwood_methods.drafters.merged import MergedDrafters, MergedDrawn
from draftwood_methods.drafters.per_level import PerLevel
from draftwood_methods.drafters.pipelined import Pipelined
from draftwood_methods.drafters.pruned import Pruned
from draftwood_methods.drafters.s2d import S2d
from draftwood_methods.drafters.specdec import Specdec
from draftwood_methods.drafters.specdec_plus_plus import SpecDecPlusPlus
from draftwood_methods.drafters.stand import Stand
from draftwood_methods.drafters.token_recycling import TokenRecycling
from draftwood_methods.drafters.windowed import Windowed

__all__ = [
    "Aded",
    "Cascade",
    "Dflash",
    "DynamicExit",
    "EarlyExit",
    "InputGuided",
    "Jacobi",
    "LayerSearch",
    "LayerSkip",
    "LenientCascade",
    "Longspec",
    "Lookahead",
    "MaskedBlock",
    "MaskedInPass",
    "MergedDrafters",
    "MergedDrawn",
    "PerLevel",
    "Pipelined",
    "Pruned",
    "S2d",
    "SpecDecPlusPlus",
    "Specdec",
    "Stand",
    "TokenRecycling",
    "Windowed",
]
