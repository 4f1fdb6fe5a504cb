"""Reuse: what passes over a fully bidirectional model keep of earlier ones."""

from dataclasses import dataclass
from typing import ClassVar

from draftwood_diffusion.part import Part


@dataclass(frozen=True)
class Reuse(Part):
    """Says which places are not run again within a block.

    Attributes:
        keeps_prefix: True for those before it.
        keeps_suffix: True for the masks behind it.
    """

    keeps_prefix: ClassVar[bool] = False
    keeps_suffix: ClassVar[bool] = False

    def require(self, bidirectional: bool) -> None:
        """Raise ValueError for a model whose finished blocks are kept anyway, which is exact.

        Args:
            bidirectional: whether everything sees everything.
        """
        if self.keeps_prefix and not bidirectional:
            raise ValueError(
                f"{self.name!r} approximates passes of models that see everything; this one keeps"
                " finished blocks, which is exact: leave it out"
            )
