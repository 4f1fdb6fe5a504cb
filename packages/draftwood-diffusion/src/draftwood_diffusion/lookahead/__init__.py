"""Parts that say how many steps are checked ahead, one file each."""

from draftwood_diffusion.lookahead.chain import StepsAhead
from draftwood_diffusion.lookahead.freedave import FreeDave
from draftwood_diffusion.lookahead.none import OneState

LOOKAHEADS: dict[str, type[StepsAhead]] = {each.name: each for each in (OneState, FreeDave)}
"""Lookaheads by name, the default first."""

__all__ = ["LOOKAHEADS", "StepsAhead"]
