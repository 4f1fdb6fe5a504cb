"""Order in which arms are measured, so that none always comes first."""

from collections.abc import Iterable
from typing import TypeVar

Arm = TypeVar("Arm")


def in_turn(arms: Iterable[Arm], turn: int) -> list[Arm]:
    """Arms from another one on in each turn, and around."""
    every = list(arms)
    shift = turn % len(every)
    return every[shift:] + every[:shift]
