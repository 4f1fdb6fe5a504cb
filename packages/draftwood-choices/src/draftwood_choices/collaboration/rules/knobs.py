"""Knobs of rules: numbers that users set, checked in one place."""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from draftwood.validation import require_number, require_whole


def knob(default: float, told: str, least: float = float("-inf"), most: float = float("inf")) -> Any:
    """Declare a knob of a rule, with what it is and its bounds; a whole default wants whole ones."""
    return field(default=default, metadata={"told": told, "least": least, "most": most})


@dataclass(frozen=True)
class Knobs:
    """Base of rules.

    Attributes:
        name: as given to ``--rule``.
        summary: one line.
        source: authors, year, arXiv id.
        meets_at_tokens: True where writers change inside a word, so that they need one vocabulary.

    Raises:
        TypeError: for a knob that is no number.
        ValueError: for one out of its range.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    meets_at_tokens: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for each in self.knobs():
            value, bounds = getattr(self, each.name), each.metadata
            told = f"{self.name}'s {each.name}"
            if isinstance(each.default, int):
                require_whole(told, value, "a whole number")
            else:
                require_number(told, value)
            if not bounds["least"] <= value <= bounds["most"]:
                raise ValueError(
                    f"{told} must be from {bounds['least']:g} to {bounds['most']:g}, got {value:g}"
                )

    @classmethod
    def knobs(cls) -> list[Any]:
        """Fields that users set."""
        return [each for each in fields(cls) if "told" in each.metadata]
