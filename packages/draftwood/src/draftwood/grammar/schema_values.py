"""Steps, bounds and constants of JSON schemas, as the compiler of grammars keeps them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from math import isfinite, lcm, ulp
from typing import Any

EXCLUSIVE = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
"""Keywords of bounds that may not be reached, and those of bounds that may be."""
CONSTANTS = ("const", "enum")
"""Keywords with the very values that are allowed."""
LARGEST_NUMBERS = {
    **dict.fromkeys((*CONSTANTS, "minimum", "maximum", "multipleOf"), 2**63),
    **dict.fromkeys(EXCLUSIVE, 2**53),
}
"""First size that is too large, by keyword: the compiler keeps floats, and adds 1 to exclusive
bounds of whole numbers.
"""
MOST_STEPS = 100_000
"""Largest step of a number, without factors of 2 and 5: a grammar has a state for each remainder.
"""
CLOSE = 1e-9
"""Distance that stands for none between a number and a bound that it may not reach."""
UNSPELLED = r"[\x00-\x07\x0b\x0e-\x1f\x7f]"
"""Control characters, which the compiler writes with ``u`` alone."""
COMBINING = ("allOf", "anyOf", "oneOf", "$ref")
"""Keywords with other schemas of the same value."""
ANNOTATIONS = (
    *("title", "description", "default", "example", "examples", "deprecated", "readOnly"),
    *(
        "writeOnly",
        "$schema",
        "$id",
        "$anchor",
        "$comment",
        "$defs",
        "definitions",
        "discriminator",
    ),
)
"""Keywords that ask nothing of the value."""


def meet(schemas: Sequence[Mapping[str, Any]], besides: tuple[str, ...] = ()) -> bool:
    """True if a value may have to fit several of a document's schemas.

    Args:
        besides: keywords that do not count.
    """
    return any(_joins(schema, besides) for schema in schemas)


def _joins(schema: Mapping[str, Any], besides: tuple[str, ...]) -> bool:
    if not any(key in schema for key in COMBINING):
        return "properties" in schema and "patternProperties" in schema
    asking = [key for key in schema if key not in (*ANNOTATIONS, *besides)]
    every = schema.get("allOf")
    return len(asking) > 1 or (isinstance(every, list) and len(every) > 1)


def steps_are_too_many(schemas: Sequence[Mapping[str, Any]]) -> bool:
    """True if the steps of a document may meet in one that is too large for the compiler.

    That counts in 32 bits, and multiplies steps before it divides.
    """
    steps = [step for each in schemas if (step := number(each.get("multipleOf"))) and step > 0]
    keys = {key for schema in schemas for key in schema}
    if not steps or keys.isdisjoint((*COMBINING, "patternProperties")):
        return False
    exact = {Decimal(str(step)) for step in steps}
    places = max(_places(step) for step in exact)
    whole = [int(step.scaleb(places)) for step in exact]
    common = lcm(*whole)
    if len(whole) > 1 and _remainders(common) > MOST_STEPS:
        return True
    again = len(steps) > 1 or "$ref" in keys
    return again and meet(schemas) and common * max(whole) >= 2**32


def with_kept_values(schema: dict[str, Any], lenient: bool, meets: bool) -> dict[str, Any]:
    """Write the numbers and constants of one schema so that the compiler keeps them.

    Args:
        lenient: leave out the keywords of values that cannot be kept.
        meets: the document has schemas that ask more of the same value.

    Raises:
        ValueError: for a value that cannot be kept, unless it is left out.
    """
    found = dict(schema)
    for key in LARGEST_NUMBERS:
        reason = _reason_against(key, found[key]) if key in found else None
        if reason is not None and not lenient:
            raise ValueError(f"the JSON schema cannot be followed: {key} {reason}")
        if reason is not None:
            del found[key]
    for exclusive, inclusive in EXCLUSIVE.items():  # true and false, as in Draft 4
        if isinstance(found.get(exclusive), bool) and found.pop(exclusive) and inclusive in found:
            found[exclusive] = found.pop(inclusive)
    return found if found.get("type") == "integer" else _with_bounds(found, meets)


def _reason_against(key: str, value: object) -> str | None:
    """Reason why the value of a keyword cannot be kept, None where it can."""
    for each in _values_in(value):
        if isinstance(each, str) and key in CONSTANTS and re.search(UNSPELLED, each):
            return f"has the text {each[:40]!r} with a control character; leave it out"
        found, largest = number(each), LARGEST_NUMBERS[key]
        if found is not None and not (abs(found) < largest and float(found) == found):
            return (
                f"has the number {str(found)[:40]}; give one that a float of 64 bits holds"
                f" exactly, below {largest}"
            )
    step = number(value) if key == "multipleOf" else None
    if step and step > 0 and _remainders(_whole(Decimal(str(step)))) > MOST_STEPS:
        return f"{step} is too large a step; give at most {MOST_STEPS}, or leave it out"
    return None


def _values_in(value: object) -> Iterator[object]:
    """Values without parts in a value."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each
        else:
            yield each


def _whole(step: Decimal) -> int:
    return int(step.scaleb(_places(step)))


def _places(step: Decimal) -> int:
    """Decimal places of a step."""
    return -min(0, int(step.normalize().as_tuple().exponent))


def _remainders(step: int) -> int:
    """States that a grammar needs for multiples of a step: factors of 2 and 5 show in the end."""
    for factor in (2, 5):
        while step % factor == 0:
            step //= factor
    return step


def _with_bounds(schema: dict[str, Any], meets: bool) -> dict[str, Any]:
    """Keep numbers from a whole bound that they may not reach, where the other one may be near.

    The compiler takes such a bound itself for one of the numbers.
    """
    low, high = (number(schema.get(exclusive)) for exclusive in EXCLUSIVE)
    least, most = (number(schema.get(inclusive)) for inclusive in EXCLUSIVE.values())
    below = min((each for each in (most, high) if each is not None), default=None)
    above = max((each for each in (least, low) if each is not None), default=None)
    found = dict(schema)
    if low is not None and low >= 0:
        found["exclusiveMinimum"] = low + _apart(low, below, meets)
    if high is not None and high <= 0:
        found["exclusiveMaximum"] = high - _apart(high, above, meets)
    return found


def _apart(bound: float, other: float | None, meets: bool) -> float:
    """Distance to keep from a bound, of numbers between it and another one."""
    width = None if other is None else abs(other - bound)
    if bound % 1 or ulp(bound) >= 1 or not (meets or (width and width < 1)):
        return 0
    near = CLOSE if not width else min(CLOSE, width / 1000)
    return max(near, ulp(bound))


def number(value: object) -> float | int | None:
    """A finite number, None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) or isfinite(value) else None
