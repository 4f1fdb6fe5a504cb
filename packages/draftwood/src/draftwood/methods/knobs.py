"""Knobs: settings of a part that users type behind its name, as in ``foreal,n=25,p=0.5``."""

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from draftwood import validation

ANY = float("inf")


def knob(default: Any, told: str, least: float = -ANY, most: float = ANY) -> Any:
    """Declare a knob: what it is, and its bounds. Where the default is whole, others must be."""
    return field(default=default, metadata={"told": told, "least": least, "most": most})


@dataclass(frozen=True)
class PartWithKnobs(ABC):
    """Part of a package's method; fields made by ``knob`` are what users set.

    Attributes:
        name: as users type it.
        summary: one line.
        source: authors, year, arXiv id.

    Raises:
        TypeError: for a knob of another type.
        ValueError: for one out of its range.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]

    def __post_init__(self) -> None:
        for each in self.knobs():
            value, bounds = getattr(self, each.name), each.metadata
            told = f"{self.name}'s {each.name}"
            if isinstance(each.default, str):
                continue
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


Made = TypeVar("Made", bound=PartWithKnobs)


def made(kind: type[Made], given: Mapping[str, str]) -> Made:
    """Make a part of knobs as users type them.

    Raises:
        ValueError: for an unknown knob, and for a value that is no number or out of range.
    """
    known = {each.name: each for each in kind.knobs()}
    found = dict[str, Any]()
    for name, value in given.items():
        if name not in known:
            has = ", ".join(known) or "none"
            raise ValueError(f"{kind.name!r} has no knob {name!r}; it has: {has}")
        wanted = type(known[name].default)
        try:
            found[name] = wanted(value)
        except ValueError:
            told = "a whole number" if wanted is int else "a number"
            raise ValueError(f"{kind.name}'s {name} must be {told}, got {value!r}") from None
    return kind(**found)
