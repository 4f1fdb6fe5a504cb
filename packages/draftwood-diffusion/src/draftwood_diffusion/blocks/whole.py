"""The whole text as one block."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood_diffusion.blocks.reach import BlockEnds, BlockPlace


@dataclass(frozen=True)
class OneBlock(BlockEnds):
    """All places of the text at once, as masked diffusion began (LLaDA, Nie et al. 2025,
    arXiv:2502.09992).
    """

    name: ClassVar[str] = "whole"
    summary: ClassVar[str] = "the whole text as one block"
    source: ClassVar[str] = "LLaDA, Nie et al. 2025, arXiv:2502.09992"

    def end(self, place: BlockPlace) -> int:
        return place.total
