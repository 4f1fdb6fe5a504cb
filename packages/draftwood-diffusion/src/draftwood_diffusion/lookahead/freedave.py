"""The next states are drafted from one pass and checked by the next."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from typing import ClassVar

import numpy as np

from draftwood.methods.knobs import knob
from draftwood_diffusion.block_state import Advance, BlockState, Leaders, Seen, numbers_of
from draftwood_diffusion.lookahead.chain import StepsAhead


@dataclass(frozen=True)
class FreeDave(StepsAhead):
    """FreeDave (2025, arXiv:2510.00294): the state that is certain, and those that would follow it
    if the newest predictions stayed, run together as a tree of blocks. A draft that is what its
    forerunner leads to is as certain as that.

    Differs from the paper: a token's race number belongs to its place, so drafts come true at every
    temperature, not greedily alone; any rule that is a function of a view may be looked ahead of,
    not one by one alone; and with ``w`` above 1 states branch, where places take tokens that came
    close to being drawn, the likeliest paths first. Where blocks see those before them alone,
    drafts reach the first state of the next block.

    Args:
        d: states that a pass runs, the certain one included.
        w: tokens that a place tries.
    """

    name: ClassVar[str] = "freedave"
    summary: ClassVar[str] = "the next d states in one pass; those that come true stay"
    source: ClassVar[str] = "FreeDave, 2025, arXiv:2510.00294"
    d: int = knob(4, "states that a pass runs", 1)
    w: int = knob(1, "tokens that a place tries, in states side by side", 1)

    def most(self, places: int) -> int:
        return min(self.d, places) if self.w == 1 else self.d

    def states(self, following: BlockState, seen: Seen, advance: Advance) -> list[BlockState]:
        found, leaders, numbers = [following], seen.leaders(self.w), count()
        coming: list[tuple[float, int, BlockState]] = []  # the likeliest first

        def add_children(state: BlockState, chance: float) -> None:
            for child, share in _children(state, seen, leaders, advance):
                heappush(coming, (-chance * share, next(numbers), child))

        add_children(following, 1.0)
        while coming and len(found) < self.d:
            chance, _, draft = heappop(coming)
            if not (draft.is_written or advance.is_over(draft)):
                found.append(draft)
                add_children(draft, -chance)
            elif (last := advance.with_next(draft)) is not None:
                found.append(last)
        return found

    def agreeing(
        self, states: Sequence[BlockState], seen: Sequence[Seen], advance: Advance
    ) -> list[BlockState]:
        run = numbers_of(states)
        found, now = [states[0]], run.pop(states[0].tokens)
        while now is not None and not states[now].next_masks:
            found.append(advance(found[-1], seen[now]))
            now = run.pop(found[-1].tokens, None)
        return found


def _children(
    state: BlockState, seen: Seen, leaders: Leaders, advance: Advance
) -> Iterator[tuple[BlockState, float]]:
    """States that may follow one, and the chance of each."""
    was_open = np.array(state.tokens) == state.mask
    for tokens, shares in zip(leaders.tokens.T, leaders.shares.T, strict=True):
        child = advance(state, replace(seen, drawn=tokens))
        if min(child.tokens) < 0:
            return  # a place has no further token
        size = len(child.tokens)
        fixed = was_open[:size] & (np.array(child.tokens) != state.mask)
        yield child, float(shares[:size][fixed].prod())
