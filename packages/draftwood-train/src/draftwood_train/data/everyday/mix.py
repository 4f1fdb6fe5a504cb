"""The everyday mix: a prompt for each number, the same on every machine."""

import random
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import overload

from draftwood_train.data.barred import Known
from draftwood_train.data.everyday.code_tasks import code_tasks
from draftwood_train.data.everyday.filling import Filler, frames
from draftwood_train.data.everyday.material import HELD_OUT_LANGUAGE, Material
from draftwood_train.data.everyday.tasks import Drawn, PromptTask, everyday_tasks, working
from draftwood_train.data.prompts import CollectedPrompt, number_of

HELD_OUT_OF = 33
"""One prompt of so many is held out, besides those of tasks that are held out as a whole."""
FOLLOWED = 0.2
"""Share of the prompts of tasks with follow-ups that go on to a second turn."""
THIRD = 0.3
"""Share of these that go on to a third."""
ATTEMPTS = 6
ENDLESS = 1 << 40


class EverydayPrompts(Sequence[CollectedPrompt]):
    """Prompts by number, made when they are asked for; none overlaps with what is measured.

    Args:
        seed: of the order and of all draws.
        measured: prompts that drafters are measured on, barred by hash and by 13 words in a row.
        only_held_out: whether all are held out.

    Raises:
        ValueError: where the mix goes without so many sources that nothing is left.
    """

    def __init__(
        self,
        material: Material,
        seed: int,
        measured: Sequence[str],
        *,
        only_held_out: bool = False,
    ) -> None:
        self.material, self.seed, self.only_held_out = material, seed, only_held_out
        self.tasks = working((*everyday_tasks(), *code_tasks()), material)
        if not self.tasks:
            raise ValueError(
                "the mix goes without all of its sources; leave out fewer with --without"
            )
        self._measured = Known(measured)
        ends = accumulate(task.weight for task in self.tasks)
        self._block = [
            place
            for place, (task, end) in enumerate(zip(self.tasks, ends, strict=True))
            for _ in range(end - task.weight, end)
        ]
        self._order = lru_cache(maxsize=8)(self._ordered)

    def __len__(self) -> int:
        return ENDLESS

    @overload
    def __getitem__(self, number: int) -> CollectedPrompt: ...

    @overload
    def __getitem__(self, number: slice) -> list[CollectedPrompt]: ...

    def __getitem__(self, number: int | slice) -> CollectedPrompt | list[CollectedPrompt]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        task, place = self._task(number)
        held_out = task.only_held_out or self._is_held_out(number)
        for attempt in range(ATTEMPTS):
            rng = random.Random(self._draw("prompt", number, attempt))
            filler = Filler(self.material, held_out, rng)
            drawn = self._drawn(task, filler, place)
            if drawn and not self.is_measured(drawn.text):
                turns = self._turns(task, filler)
                return CollectedPrompt(drawn.text, drawn.source, task.kind, turns, held_out)
        return CollectedPrompt("", "composed", task.kind, (), held_out)

    def is_measured(self, text: str) -> bool:
        """True if the text overlaps with a prompt of the measurements."""
        return self._measured.holds(text) or self._measured.shares_a_run(text)

    def split(self) -> dict[str, object]:
        """Everything that is held out, as the manifest tells it."""
        wordings = {name: list(pool.held_out) for name, pool in frames().items()}
        return {
            "prompts": "all"
            if self.only_held_out
            else f"1 of {HELD_OUT_OF}, by a hash of seed and number",
            "kinds": sorted({task.kind for task in self.tasks if task.only_held_out}),
            "languages": [HELD_OUT_LANGUAGE],
            **self.material.split(),
            "frames": wordings,
        }

    def _is_held_out(self, number: int) -> bool:
        return self.only_held_out or self._draw("split", number) % HELD_OUT_OF == 0

    def _draw(self, *parts: object) -> int:
        return number_of(self.seed, "everyday", *parts)

    def _ordered(self, block: int) -> list[int]:
        order = list(self._block)
        random.Random(self._draw("order", block)).shuffle(order)
        return order

    def _task(self, number: int) -> tuple[PromptTask, int]:
        """Task of a prompt, and how many prompts of that task come before."""
        block, rank = divmod(number, len(self._block))
        order = self._order(block)
        task = self.tasks[order[rank]]
        return task, block * task.weight + order[:rank].count(order[rank])

    def _drawn(self, task: PromptTask, filler: Filler, place: int) -> Drawn | None:
        try:
            return task.make(filler, place)
        except (LookupError, StopIteration):  # a list has come to its end
            return None

    def _turns(self, task: PromptTask, filler: Filler) -> tuple[str, ...]:
        if not task.follows or filler.rng.random() >= FOLLOWED:
            return ()
        turns = [filler.filled(filler.frame(task.follows))]
        if filler.rng.random() < THIRD:
            turns.append(filler.filled(filler.frame("third turns")))
        return tuple(turns)
