"""One forward pass through recurrences: the rows that there are, and those that come."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from draftwood_torch.models.run_cache import RunCache
from draftwood_torch.models.tensor_input import TensorInput
from draftwood_torch.recurrences.base import Ancestry, Recurrence
from draftwood_torch.recurrences.memory import RecurrentMemory
from draftwood_torch.recurrences.pool import MOST_ROWS, NEWEST_ROWS, RecurrentPool


class RecurrentCache(RunCache):
    """The pool as Transformers and recurrences see it during one forward pass."""

    def __init__(self, pool: RecurrentPool, parts: Sequence[TensorInput]) -> None:
        super().__init__(pool, [part.place for part in parts])
        self.recurrences, self.before, self.parts = pool.recurrences, pool.before, parts
        self.in_prompt = parts[0].is_prompt
        self.memories = [pool.memory(part) for part in parts]
        self.loose = [len(memory.index) - self.before for memory in self.memories]
        self.old, self.new = max(self.loose), max(part.place.count for part in parts)
        self.taken = [
            torch.tensor(memory.index).to(pool.device, non_blocking=True)
            for memory in self.memories
        ]
        self.fold = 0
        if self.in_prompt:
            rows = self.old + self.new
            self.fold = rows - NEWEST_ROWS if rows > MOST_ROWS else 0
        else:
            reach = torch.stack([self._reach(number) for number in range(len(parts))])
            self.ancestries = {
                kernel: Ancestry.of(reach, kernel - 1, self.new, pool.device)
                for kernel in {each.kernel for each in self.recurrences}
            }
        self._after: dict[int, Tensor] = {}
        self._scanned: dict[int, Tensor] = {}

    def scan(
        self, recurrence: Recurrence, rows: Float[Tensor, "batch new width"]
    ) -> Float[Tensor, "batch new outputs"]:
        number, kernel = recurrence.number, recurrence.kernel
        memories = [memory.rows[number] for memory in self.memories]
        old = [
            self._apart(kept.index_select(0, taken))
            for kept, taken in zip(memories, self.taken, strict=True)
        ]
        every = torch.cat([old[0][None] if len(old) == 1 else torch.stack(old), rows], dim=1)
        self._scanned[number] = every
        state = _stacked([memory.states[number] for memory in self.memories])
        seen = every[:, self.before - kernel + 1 :]
        if not self.in_prompt:
            return recurrence.scan(state, seen, self.ancestries[kernel])[0]
        outputs, self._after[number] = recurrence.through(state, seen, self.fold)
        return outputs[:, -rows.shape[1] :]

    def finish(self) -> None:
        """Keep what was run; until then all is as before the pass."""
        pool = self.pool
        assert isinstance(pool, RecurrentPool)
        for number, part in enumerate(self.parts):
            pool.remember(part, self._prompt() if self.in_prompt else self._tree(number))

    def _prompt(self) -> RecurrentMemory:
        memory, order = self.memories[0], range(len(self.recurrences))
        rows = [self._scanned[number][0, self.fold :] for number in order]
        return RecurrentMemory(
            tuple(self._after[number] for number in order),
            memory.base + self.fold,
            tuple(each.clone() for each in rows),  # a view would keep all rows of the prompt
            tuple(range(len(rows[0]))),
        )

    def _tree(self, number: int) -> RecurrentMemory:
        memory, part = self.memories[number], self.parts[number]
        begin = self.before + self.old - self.loose[number]
        end = self.before + self.old + part.place.count
        rows = [self._scanned[each][number] for each in range(len(self.recurrences))]
        if len(self.parts) > 1:  # a view would keep those of all sequences
            rows = [each.clone() for each in rows]
        return RecurrentMemory(
            memory.states,
            memory.base,
            tuple(rows),
            (*range(self.before), *range(begin, end)),
            (part.before, self._seen(number)),
        )

    def _seen(self, number: int) -> Bool[Tensor, "nodes nodes"]:
        """Mask of all nodes since the last commit for each other."""
        memory, part = self.memories[number], self.parts[number]
        nodes, first = len(part.tree_positions), part.place.start - part.before
        seen = torch.ones(nodes, nodes, dtype=torch.bool, device=part.sees.device).tril()
        seen[first:] = part.sees
        if first and memory.nodes is not None:
            begin, earlier = memory.nodes
            shift = begin - part.before
            count = max(0, min(first - shift, len(earlier)))
            seen[shift : shift + count, shift : shift + count] = earlier[:count, :count].to(
                seen.device
            )
        return seen

    def _reach(self, number: int) -> Bool[Tensor, "rows rows"]:
        """Mask of the rows for each other; padding, before and after them, sees itself alone."""
        part, size = self.parts[number], self.old + self.new
        seen = self._seen(number)
        reach = torch.eye(size, dtype=torch.bool, device=seen.device)
        begin, end = self.old - self.loose[number], self.old + part.place.count
        reach[begin:end, begin:end] = True
        reach.tril_()
        reach[end - len(seen) : end, end - len(seen) : end] = seen
        return reach

    def _apart(self, rows: Float[Tensor, "rows width"]) -> Float[Tensor, "old width"]:
        """With padding between the rows that are looked back at and the others."""
        missing = self.before + self.old - len(rows)
        if not missing:
            return rows
        padding = rows.new_zeros(missing, rows.shape[1])
        return torch.cat([rows[: self.before], padding, rows[self.before :]])


def _stacked(states: Sequence[Tensor]) -> Tensor:
    return states[0] if len(states) == 1 else torch.cat(list(states))
