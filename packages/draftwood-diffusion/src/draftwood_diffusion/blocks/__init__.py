"""Parts that say how far a block reaches, one file each."""

from draftwood_diffusion.blocks.adablock import AdaBlock
from draftwood_diffusion.blocks.end_cut import EndCut
from draftwood_diffusion.blocks.fixed import FixedBlocks
from draftwood_diffusion.blocks.reach import BlockEnds, BlockPlace
from draftwood_diffusion.blocks.whole import OneBlock

BLOCKS: dict[str, type[BlockEnds]] = {
    each.name: each for each in (FixedBlocks, OneBlock, AdaBlock, EndCut)
}
"""Blocks by name, the default first."""

__all__ = ["BLOCKS", "BlockEnds", "BlockPlace"]
