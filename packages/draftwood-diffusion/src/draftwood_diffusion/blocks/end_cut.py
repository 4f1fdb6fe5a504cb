"""Nothing is written behind an end token."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood_diffusion.blocks.fixed import FixedBlocks


@dataclass(frozen=True)
class EndCut(FixedBlocks):
    """Learn2PD's second part (2025, arXiv:2509.25188): once an end token is fixed, masks behind it
    are taken away. Places before it no longer see them, so the text may change.
    """

    name: ClassVar[str] = "end-cut"
    summary: ClassVar[str] = "blocks end at an end token as soon as one is fixed"
    source: ClassVar[str] = "Learn2PD, 2025, arXiv:2509.25188"

    @property
    def cuts_ends(self) -> bool:
        return True
