"""Tokens of prompts that a step has time for."""

from collections.abc import Callable
from dataclasses import dataclass

SLOWER = 1.5
"""A step with prompts may take so many times what it takes without them, whatever the bound."""


@dataclass(frozen=True)
class Pace:
    """Bounds the seconds of a step by what forward passes are known to cost.

    Args:
        seconds: of a forward pass by rows.
        most: seconds that a step may take.
        per_context_token: seconds that each row takes longer for every token before it.

    Raises:
        ValueError: for no time at all.
    """

    seconds: Callable[[int], float]
    most: float
    per_context_token: float = 0.0

    def __post_init__(self) -> None:
        if not self.most > 0:
            raise ValueError(f"a step must have more than 0 seconds, got {self.most}")

    def prompt_rows(self, rows: int, context: int, length: int, most: int) -> int:
        """Rows of a prompt that fit beside others; at least 1, and all where there are no others.

        A step may always take half as long again as without prompts, or they would never end where
        a pass alone takes as long as a step may.

        Args:
            rows: of the step so far.
            context: tokens before these, summed over all of them.
            length: tokens of this prompt that are in the cache.
            most: rows that are wanted.
        """
        if not rows:
            return most
        allowed = max(self.most, SLOWER * (self.seconds(rows) + self.per_context_token * context))
        low, high = 1, max(1, most)
        while low < high:
            middle = (low + high + 1) // 2
            before = context + middle * length + middle * middle // 2
            if self.seconds(rows + middle) + self.per_context_token * before <= allowed:
                low = middle
            else:
                high = middle - 1
        return low
