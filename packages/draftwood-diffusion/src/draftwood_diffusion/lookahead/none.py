"""One state a pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from draftwood_diffusion.block_state import Advance, BlockState, Seen
from draftwood_diffusion.lookahead.chain import StepsAhead


@dataclass(frozen=True)
class OneState(StepsAhead):
    """The next state alone is run (LLaDA, Nie et al. 2025, arXiv:2502.09992)."""

    name: ClassVar[str] = "step"
    summary: ClassVar[str] = "one state of the block a pass"
    source: ClassVar[str] = "LLaDA, Nie et al. 2025, arXiv:2502.09992"

    def states(self, following: BlockState, seen: Seen, advance: Advance) -> list[BlockState]:
        del seen, advance
        return [following]

    def agreeing(
        self, states: Sequence[BlockState], seen: Sequence[Seen], advance: Advance
    ) -> list[BlockState]:
        return [states[0], advance(states[0], seen[0])]
