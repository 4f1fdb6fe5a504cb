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
