"""The next states are drafted from one pass and checked by the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from draftwood.methods.knobs import knob
from draftwood_diffusion.block_state import Advance, BlockState, Seen
from draftwood_diffusion.lookahead.chain import StepsAhead


@dataclass(frozen=True)
class FreeDave(StepsAhead):
    """FreeDave (2025, arXiv:2510.00294): the state that is certain, and those that would follow it
    if the newest predictions stayed, run together as a tree of blocks. A draft that is what its
    forerunner leads to is as certain as that.

    Differs from the paper: a token's race number belongs to its place, so drafts come true at every
    temperature, not greedily alone; and any rule that is a function of a view may be looked ahead
    of, not one by one alone. Drafts end with their block.

    Args:
        d: states that a pass runs, the certain one included.
    """

    name: ClassVar[str] = "freedave"
    summary: ClassVar[str] = "the next d states in one pass; those that come true stay"
    source: ClassVar[str] = "FreeDave, 2025, arXiv:2510.00294"
    d: int = knob(4, "states that a pass runs", 1)

    @property
    def most(self) -> int:
        return self.d

    def states(self, following: BlockState, seen: Seen, advance: Advance) -> list[BlockState]:
        found = [following]
        while len(found) < self.d:
            draft = advance(found[-1], seen)
            if draft.is_written or advance.is_over(draft):
                break  # there is nothing to predict
            found.append(draft)
        return found

    def agreeing(
        self, states: Sequence[BlockState], seen: Sequence[Seen], advance: Advance
    ) -> list[BlockState]:
        found = [states[0]]
        for number, predicted in enumerate(seen):
            found.append(advance(found[-1], predicted))
            coming = number + 1
            if coming == len(states) or states[coming].tokens != found[-1].tokens:
                break
        return found
