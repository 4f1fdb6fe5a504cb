"""Blocks: how far the masks reach that are filled together."""

from abc import abstractmethod
from dataclasses import dataclass

from draftwood_diffusion.part import Part
from draftwood_diffusion.view import View


@dataclass(frozen=True)
class BlockPlace:
    """A place where a block begins, counted as positions of the model.

    Attributes:
        start: first place of the block.
        prompt: tokens of the prompt; a block may begin with the last of them.
        total: places of prompt and text.
        grid: place from which blocks of equal length are counted.
        length: of such a block.
        most: places of a block that the rule can read; None for any number.
    """

    start: int
    prompt: int
    total: int
    grid: int
    length: int
    most: int | None = None

    @property
    def regular_end(self) -> int:
        """First place behind a block of the model's own length."""
        ahead = (self.start - self.grid) // self.length + 1
        return min(self.total, self.grid + ahead * self.length)


@dataclass(frozen=True)
class BlockEnds(Part):
    """Says where blocks end. Blocks of the model's own length are the default.

    Attributes:
        cuts_ends: True if nothing is written behind an end token, once there is one.
    """

    @property
    def cuts_ends(self) -> bool:
        return False

    @abstractmethod
    def end(self, place: BlockPlace) -> int:
        """First place behind a block, asked before its first pass."""

    def kept(self, view: View, place: BlockPlace) -> int:
        """Places of the block that stay, told after its first pass; the others come later."""
        del place
        return len(view.tokens)
