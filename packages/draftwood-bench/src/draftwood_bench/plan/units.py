"""Units of work, each measured at one moment so that its parts can be compared."""

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Literal

from draftwood_bench.plan.configurations import PLAIN, Configuration
from draftwood_bench.plan.prompt import Prompt

Key = tuple[str, float, str, int, int]


UnitKind = Literal["turns", "thrifty", "load"]


@dataclass(frozen=True)
class Unit:
    """One piece of a run.

    Attributes:
        kind: ``turns``: every cell on one prompt, in turns; ``thrifty``: every cell on one prompt
            in shared forward passes, not timed; ``load``: one cell on all prompts, several at once.
        cells: what is measured.
        prompts: prompts, each with its number in the set.
        temperature: 0 is greedy.
        round: from 0.
        place: of the first prompt among those that fit, from 0.
    """

    kind: UnitKind
    cells: tuple[Configuration, ...]
    prompts: tuple[tuple[int, Prompt], ...]
    temperature: float
    round: int
    place: int = 0

    @property
    def keys(self) -> list[Key]:
        """Record keys of the first turns; later turns are recorded before them."""
        return [
            (cell.key, self.temperature, prompt.id, 0, self.round)
            for cell in self.cells
            for _, prompt in self.prompts
        ]

    def key(self, cell: str, turn: int = 0) -> Key:
        """Record key of a configuration for a turn of the first prompt."""
        return (cell, self.temperature, self.prompts[0][1].id, turn, self.round)

    def left(self, done: Container[Key]) -> "Unit":
        """The cells that are yet to be measured; all of a unit that is measured at one moment."""
        if self.kind != "thrifty":
            return self
        cells = tuple(cell for cell in self.cells if self.key(cell.key) not in done)
        return replace(self, cells=cells)

    def lacks(self, cell: str, done: Container[Key]) -> bool:
        """True if a configuration lacks the first turn of the first prompt, or another one that
        plain decoding has answered.
        """
        turns = range(len(self.prompts[0][1].turns))
        answered = [turn for turn in turns if self.key(Configuration(PLAIN).key, turn) in done]
        return any(self.key(cell, turn) not in done for turn in {0, *answered})

    def seed(self, base: int, number: int, turn: int = 0) -> int:
        """The seed of a request: the same for every cell."""
        return base + number + 10_000 * self.round + 1_000_000 * turn
