"""Parts that say how many steps are checked ahead, one file each."""

from draftwood_diffusion.lookahead.chain import Lookahead
from draftwood_diffusion.lookahead.freedave import FreeDave
from draftwood_diffusion.lookahead.none import NoLookahead

LOOKAHEADS: dict[str, type[Lookahead]] = {each.name: each for each in (NoLookahead, FreeDave)}
"""Lookaheads by name, the default first."""

__all__ = ["LOOKAHEADS", "Lookahead"]
