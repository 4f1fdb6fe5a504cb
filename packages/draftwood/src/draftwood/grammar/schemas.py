"""Mend JSON schemas, so that the compiler of grammars keeps all that they ask."""

from collections.abc import Mapping
from decimal import Decimal
from math import isfinite
from typing import Any

NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords with schemas by name."""
NESTED = (
    *("items", "prefixItems", "contains", "additionalProperties", "propertyNames", "not"),
    *("anyOf", "oneOf", "allOf", "if", "then", "else", "additionalItems", "unevaluatedProperties"),
)
"""Keywords with a schema, or a list of them."""
COUNTS, PATTERNS = ("minProperties", "maxProperties"), ("pattern", "patternProperties", "format")
MOST_STEPS = 100_000
"""Largest step of a number, without factors of 2 and 5: a grammar has a state for each remainder.
"""
CLOSE = 1e-9
"""Distance that stands for none between a number and a bound that it may not reach."""


def mended(schema: Any, lenient: bool = False, without: tuple[str, ...] = ()) -> Any:
    """Write a schema so that it is compiled as it is meant.

    Args:
        lenient: leave out what cannot be kept.
        without: keywords that are left out.

    Raises:
        ValueError: for what cannot be kept, unless it is left out.
    """
    if isinstance(schema, list):
        return [mended(each, lenient, without) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {}
    for key, value in schema.items():
        if key in without or (key == "uniqueItems" and value is False):
            continue
        if key in NAMED and isinstance(value, Mapping):
            value = {name: mended(each, lenient, without) for name, each in value.items()}
        elif key in NESTED:
            value = mended(value, lenient, without)
        found[key] = value
    if lenient and "properties" in found:
        found = {key: value for key, value in found.items() if key not in COUNTS}
    return _with_steps(_with_bounds(found), lenient)


def _with_steps(schema: dict[str, Any], lenient: bool) -> dict[str, Any]:
    step = _number(schema.get("multipleOf"))
    if step is None or step <= 0:
        return schema
    whole = Decimal(str(step)).normalize()
    size = int(whole.scaleb(-min(0, int(whole.as_tuple().exponent))))
    for factor in (2, 5):
        while size % factor == 0:
            size //= factor
    if size <= MOST_STEPS:
        return schema
    if lenient:
        return {key: value for key, value in schema.items() if key != "multipleOf"}
    raise ValueError(
        f"the JSON schema cannot be followed: multipleOf {step} is too large a step; give at most"
        f" {MOST_STEPS}, or leave it out"
    )


def _with_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """Keep numbers from a whole bound that they may not reach, where the other one is near.

    The compiler takes such a bound itself for one of the numbers.
    """
    if schema.get("type") == "integer":
        return schema
    low, high = (_number(schema.get(f"exclusive{name}")) for name in ("Minimum", "Maximum"))
    least, most = (_number(schema.get(name)) for name in ("minimum", "maximum"))
    below = min((each for each in (most, high) if each is not None), default=None)
    above = max((each for each in (least, low) if each is not None), default=None)
    found = dict(schema)
    if low is not None and below is not None and low >= 0:
        found["exclusiveMinimum"] = low + _apart(low, below - low)
    if high is not None and above is not None and high <= 0:
        found["exclusiveMaximum"] = high - _apart(high, high - above)
    return found


def _apart(bound: float, width: float) -> float:
    """Distance to keep from a bound, of numbers in a range of this width behind it."""
    return min(CLOSE, width / 1000) if bound % 1 == 0 and 0 < width < 1 else 0


def _number(value: object) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isfinite(value) else None
