"""Faults that the doctor names, and counts of accepted drafts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Fault = Literal[
    "template",
    "target",
    "shifted labels",
    "little training",
    "layer",
    "precision",
    "vocabulary",
]


@dataclass(frozen=True)
class Difference:
    """A difference between training and decoding.

    Attributes:
        fault: its kind.
        says: figures and cure, in one line.
        text: number of the first held-out text that shows it; None where all of them do.
        place: the first place of that text.
    """

    fault: Fault
    says: str
    text: int | None = None
    place: int | None = None

    def __str__(self) -> str:
        where = "" if self.text is None else f" at text {self.text}, place {self.place}"
        return f"{self.fault}{where}: {self.says}"


@dataclass
class Drafted:
    """Drafts of one task kind, by depth: how many were reached, and how many were right there.

    A draft is reached where all drafts above it were right.
    """

    reached: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)

    def add(self, right: int, drafted: int) -> None:
        """Count a chain of ``drafted`` tokens, the first ``right`` of which were right."""
        self.add_each([depth < right for depth in range(min(right + 1, drafted))])

    def add_each(self, rights: Sequence[bool]) -> None:
        """Count one draft of each depth, by whether it was right."""
        for depth, is_right in enumerate(rights):
            if depth == len(self.reached):
                self.reached.append(0)
                self.right.append(0)
            self.reached[depth] += 1
            self.right[depth] += is_right

    def share(self, depth: int) -> float | None:
        """Share of right drafts at a depth, 0 being the first; None where none was reached."""
        if depth >= len(self.reached) or not self.reached[depth]:
            return None
        return self.right[depth] / self.reached[depth]
