"""Parts that say how far a block reaches, one file each."""

from draftwood_diffusion.blocks.adablock import AdaBlock
from draftwood_diffusion.blocks.end_cut import EndCut
from draftwood_diffusion.blocks.fixed import FixedBlocks
from draftwood_diffusion.blocks.reach import BlockPlace, Blocks
from draftwood_diffusion.blocks.whole import WholeText

BLOCKS: dict[str, type[Blocks]] = {
    each.name: each for each in (FixedBlocks, WholeText, AdaBlock, EndCut)
}
"""Blocks by name, the default first."""

__all__ = ["BLOCKS", "BlockPlace", "Blocks"]
