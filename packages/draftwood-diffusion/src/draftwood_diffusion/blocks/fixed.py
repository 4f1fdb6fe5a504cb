"""Blocks of the length with which the model was trained."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood_diffusion.blocks.reach import BlockEnds, BlockPlace


@dataclass(frozen=True)
class FixedBlocks(BlockEnds):
    """Blocks of equal length (block diffusion, Arriola et al. 2025, arXiv:2503.09573)."""

    name: ClassVar[str] = "fixed"
    summary: ClassVar[str] = "blocks of the model's own length"
    source: ClassVar[str] = "Arriola et al. 2025, arXiv:2503.09573"

    def end(self, place: BlockPlace) -> int:
        return place.regular_end
