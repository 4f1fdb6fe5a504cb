"""Blocks of caches with a limit: who gets them, and who gives them back."""

from collections.abc import Iterable, Mapping

from draftwood.engine.task import SequenceStatus, Task
from draftwood.models.requirements import BlockCache


def preempt_youngest(tasks: Mapping[int, Task[object]]) -> dict[int, SequenceStatus]:
    """Preempt the youngest tasks until the next trees of the others fit, and the oldest task.

    Nothing was drafted for the next pass yet, so that no text depends on who is preempted.

    Returns:
        The status of each task.
    """
    while True:
        known = {number: task.status for number, task in tasks.items()}
        short = FreeBlocks(known.values()).short
        if not short:
            return known
        holders = [n for n in known if known[n].cache in short and known[n].length]
        if len(holders) < 2 or not tasks[max(holders)].preempt():
            return known  # a pass will report what is lacking


class FreeBlocks:
    """Blocks that are left for prompts once each text has what its next tree may take.

    The oldest task, which comes first, counts as one.
    """

    def __init__(self, known: Iterable[SequenceStatus]) -> None:
        self._left: dict[int, int] = {}
        self._caches: dict[int, BlockCache] = {}
        for number, each in enumerate(known):
            if each.cache is not None and each.cache.free_blocks is not None:
                self._caches[id(each.cache)] = each.cache
                left = self._left.setdefault(id(each.cache), each.cache.free_blocks)
                if not each.prompt_left or not number:
                    self._left[id(each.cache)] = left - each.wants

    @property
    def short(self) -> list[BlockCache]:
        """Caches in which the texts have too few."""
        return [self._caches[number] for number, left in self._left.items() if left < 0]

    def has(self, status: SequenceStatus) -> bool:
        """True if all of a prompt fits."""
        left = self._left.get(id(status.cache))
        return left is None or status.wants <= left

    def take(self, status: SequenceStatus) -> None:
        """Keep them for this prompt."""
        if id(status.cache) in self._left:
            self._left[id(status.cache)] -= status.wants
