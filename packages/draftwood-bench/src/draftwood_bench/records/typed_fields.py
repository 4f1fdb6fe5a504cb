"""Dataclasses of what JSON holds, refused where a field is of another type than declared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Made = TypeVar("Made")

_JSON: dict[Any, type] = {Sequence: list, tuple: list, Mapping: dict}
"""Types that JSON has in the place of others."""


def made_of(kind: type[Made], found: Any) -> Made:
    """Make a dataclass of an object that was read; what it has no fields for is left out.

    Raises:
        TypeError: for what is no object, and for fields that are missing or of another type.
    """
    if not isinstance(found, dict):
        raise TypeError("it is no object")
    types = _types(kind)
    given = {name: value for name, value in found.items() if name in types}
    for name, value in given.items():
        if not types[name].takes(value):
            raise TypeError(f"{name} cannot be {value!r:.40}")
    return kind(**given)


@dataclass(frozen=True)
class FieldType:
    """Type of a field.

    Attributes:
        classes: of values; none for any.
        held: type of what lists and objects hold, where that is lists or objects too.
    """

    classes: frozenset[type]
    held: "FieldType | None" = None

    @classmethod
    def of(cls, hint: Any) -> "FieldType":
        """The type that an annotation declares."""
        several = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        classes, held = set[Any](), None
        for each in several:
            if each is Any:
                return cls(frozenset())
            told = get_origin(each) or each
            classes |= {float, int} if each is float else {_JSON.get(told, told)}
            if get_origin(each) in (list, dict):
                inner = cls.of(get_args(each)[-1])
                held = inner if inner.classes & {list, dict} else None
        return cls(frozenset(classes), held)

    def takes(self, value: Any) -> bool:
        """True if a value is of this type."""
        if self.classes and type(value) not in self.classes:
            return False
        if self.held is None or not isinstance(value, (list, dict)):
            return True
        return all(map(self.held.takes, value.values() if isinstance(value, dict) else value))


@cache
def _types(kind: type) -> Mapping[str, FieldType]:
    hints = get_type_hints(kind)
    return {each.name: FieldType.of(hints[each.name]) for each in fields(kind)}
