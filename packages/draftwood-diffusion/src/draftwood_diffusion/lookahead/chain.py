"""Lookahead: which states of a block one pass runs, and which of them come true."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from draftwood_diffusion.block_state import Advance, BlockState, Seen
from draftwood_diffusion.part import Part


@dataclass(frozen=True)
class StepsAhead(Part):
    """Says which states are run beside the next one; the text stays the same."""

    def most(self, places: int) -> int:
        """States of a pass at most, over a block of so many places."""
        del places
        return 1

    @abstractmethod
    def states(self, following: BlockState, seen: Seen, advance: Advance) -> list[BlockState]:
        """States to run in the next pass: the certain one first, then drafts, each behind those
        that it follows; see ``Advance.with_next`` for the end of a block.

        Args:
            following: the next state, of a block that goes on.
            seen: what the newest pass said of the state before it.
        """

    @abstractmethod
    def agreeing(
        self, states: Sequence[BlockState], seen: Sequence[Seen], advance: Advance
    ) -> list[BlockState]:
        """States that came true, in order, and last of all the one after them, which was run too
        if the next block's masks were.

        Args:
            states: that were run; the first is certain.
            seen: what the pass said of each.
        """
