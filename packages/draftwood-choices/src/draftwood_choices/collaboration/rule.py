"""Rules of collaboration: who writes next, and the knobs that users set."""

import random
from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from draftwood import validation
from draftwood_choices.collaboration.passages import JudgeRequest, Passage, TurnRequest

Course = Generator[TurnRequest | JudgeRequest | Passage, Passage | float, None]
"""A rule at work on one text: it yields what it asks for, and is sent what came of it.

A passage that it yields takes the newest one's place; it is sent back.
"""
ANY = float("inf")


def knob(default: float, told: str, least: float = -ANY, most: float = ANY) -> Any:
    """Declare a knob: what it is, and its bounds. Where the default is whole, others must be."""
    return field(default=default, metadata={"told": told, "least": least, "most": most})


@dataclass(frozen=True)
class CollaborationRule(ABC):
    """Says who writes next; fields made by ``knob`` are what users set.

    Attributes:
        name: as given to ``--rule``.
        summary: one line.
        source: authors, year, arXiv id.
        meets_at_tokens: True where writers change inside a word, so that they need one vocabulary.
        reads_leader: True if it reads what the leader thinks of a text.

    Raises:
        TypeError: for a knob that is no number.
        ValueError: for one out of its range.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    meets_at_tokens: ClassVar[bool] = False
    reads_leader: ClassVar[bool] = False

    @abstractmethod
    def course(self, chance: random.Random) -> Course:
        """Begin a text.

        Args:
            chance: of the text's seed.
        """

    def __post_init__(self) -> None:
        for each in self.knobs():
            value, bounds = getattr(self, each.name), each.metadata
            told = f"{self.name}'s {each.name}"
            if isinstance(each.default, int):
                validation.require_whole(told, value, "a whole number")
            else:
                validation.require_number(told, value)
            if not bounds["least"] <= value <= bounds["most"]:
                raise ValueError(
                    f"{told} must be from {bounds['least']:g} to {bounds['most']:g}, got {value:g}"
                )

    @classmethod
    def knobs(cls) -> list[Any]:
        """Fields that users set."""
        return [each for each in fields(cls) if "told" in each.metadata]
