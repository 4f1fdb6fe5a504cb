"""Mend JSON schemas, so that the compiler of grammars keeps all that they ask."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from draftwood.grammar.schema_values import meet, steps_are_too_many, with_kept_values

NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords with schemas by name. Any other keyword may have a schema, or a list of them."""
DATA = ("enum", "const", "default", "example", "examples")
"""Keywords with values that are no schemas."""
GROUPS = (("patternProperties", "additionalProperties"), ("items", "additionalItems"))
"""Keywords of which the second asks for what the first leaves open. The compiler reads one without
the other where a keyword such as ``anyOf`` stands between.
"""
COUNTS, PATTERNS = ("minProperties", "maxProperties"), ("pattern", "patternProperties", "format")
OTHERS = ("additionalProperties", "patternProperties")
"""Keywords that speak of properties that are not listed."""
CONDITIONS = ("if", "dependentSchemas", "dependencies", "dependentRequired")
"""Keywords that ask for more of the same value where something holds."""
MOST_COUNTED = 200
"""Names of properties in a document whose counts may meet those of another of its schemas: the
compiler has a grammar of all others for each.
"""
MOST_OPTIONAL = 40
"""Optional properties of which one must be there: a grammar has an alternative for each."""
SET_SIGNS = ("[", "&&", "--", "~~")
"""Signs that join sets in a class of the compiler's expressions, and are characters in others."""
NUL = r"\0|\\x00|\\u0000|\\U0{8}|\\[xuU]\{0+\}"
CHARACTERS = re.compile(
    rf"(\[\^?\]?(?:\\.|[^\]\\])*\\?(?:\]|\Z)|\\[pP](?:\{{[^}}]*(?:\}}|\Z)|.)|{NUL})|\\.",
    re.DOTALL,
)
"""A class of characters in a pattern, or the character that no text may hold; else an escape. One
that nothing closes ends with the pattern: it is refused later, and not looked for from each sign.
"""


def mended(schema: Any, lenient: bool = False, without: tuple[str, ...] = ()) -> Any:
    """Write a schema so that it is compiled as it is meant.

    An object that lists properties and says nothing of others has no others, unless schemas of the
    document ask more of the same value: models would seldom end it.

    Args:
        lenient: leave out numbers, constants and counts that cannot be kept.
        without: keywords that are left out.

    Raises:
        ValueError: for what cannot be kept, unless it is left out.
    """
    schemas = [*_schemas_in(schema)]
    for each in schemas:
        _require_leads_to_schema(each.get("$ref"))
    too_many = steps_are_too_many(schemas)
    if too_many and lenient:
        without = (*without, "multipleOf")
    meets = meet(schemas)
    counted = meets and _counts_many_names(schemas)
    if counted and lenient:
        without = (*without, *COUNTS)
    asks_more = any(key in each for each in schemas for key in CONDITIONS)
    stays_open = asks_more or meet(schemas, besides=("type", "nullable"))
    found = _Mending(lenient, frozenset(without), meets, stays_open).of(schema)
    if too_many and not lenient:
        raise ValueError(
            "the JSON schema cannot be followed: its values of multipleOf have too large a common"
            " multiple; give steps that divide one another, or leave them out"
        )
    if counted and not lenient:
        raise ValueError(
            "the JSON schema cannot be followed: minProperties or maxProperties in a document with"
            f" more than {MOST_COUNTED} names of properties; leave them out"
        )
    return found


def _counts_many_names(schemas: Sequence[Mapping[str, Any]]) -> bool:
    """True if objects are counted in a document with very many names of properties."""
    names = {name for each in schemas for name in _names(each.get("properties"))}
    return len(names) > MOST_COUNTED and any(key in each for each in schemas for key in COUNTS)


def _schemas_in(document: Any) -> Iterator[Mapping[str, Any]]:
    """All that may be a schema in a document, wherever references lead."""
    waiting = [document]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list | tuple):
            waiting += each
        elif isinstance(each, Mapping):
            yield each
            for key, value in each.items():
                waiting += _below(key, value)


def _below(key: str, value: Any) -> Iterable[Any]:
    """Schemas and lists of schemas that a keyword has."""
    if key in DATA:
        return ()
    return value.values() if key in NAMED and isinstance(value, Mapping) else (value,)


def _require_leads_to_schema(reference: object) -> None:
    """Raise ValueError for a reference to a place that is not read as a schema."""
    if not isinstance(reference, str):
        return
    place = unquote(reference.partition("#")[2])
    named = False
    for key in place.split("/"):
        if key in DATA and not named:
            break
        named = key in NAMED and not named
    else:
        if not named:
            return
    raise ValueError(
        f"the JSON schema cannot be followed: the reference {reference[:100]!r} leads to no schema;"
        " put schemas into $defs"
    )


@dataclass(frozen=True)
class _Mending:
    """Mends the schemas of one document.

    Attributes:
        lenient, without: as in ``mended``.
        meets: a value may have to fit several of the schemas.
        stays_open: an object may have to.
    """

    lenient: bool
    without: frozenset[str]
    meets: bool
    stays_open: bool

    def of(self, schema: Any) -> Any:
        if isinstance(schema, list | tuple):
            return [self.of(each) for each in schema]
        if not isinstance(schema, Mapping):
            return schema
        found = {
            key: self._value(key, value)
            for key, value in schema.items()
            if key not in self.without and not (key == "uniqueItems" and value is False)
        }
        if not self.stays_open:
            found = _closed(found)
        if self.lenient and "properties" in found:
            found = {key: value for key, value in found.items() if key not in COUNTS}
        _require_few_alternatives(found)
        return with_kept_values(_grouped(found), self.lenient, self.meets)

    def _value(self, key: str, value: Any) -> Any:
        if key in DATA:
            return value
        if key == "pattern" and isinstance(value, str):
            return _kept_pattern(value)
        if key == "patternProperties" and isinstance(value, Mapping):
            return {_kept_pattern(str(name)): self.of(each) for name, each in value.items()}
        if key in NAMED and isinstance(value, Mapping):
            return {name: self.of(each) for name, each in value.items()}
        return self.of(value)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without other properties, where it lists some and does not speak of others."""
    if "unevaluatedProperties" in schema:  # no other schema tells of the same value
        schema = dict(schema)
        schema.setdefault("additionalProperties", schema.pop("unevaluatedProperties"))
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, Mapping) or any(key in schema for key in OTHERS):
        return schema
    asks_for_others = (
        any(each is False for each in properties.values())
        or "minProperties" in schema
        or not (isinstance(required, list) and all(name in properties for name in required))
    )
    return schema if asks_for_others else {**schema, "additionalProperties": False}


def _grouped(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema in which keywords that belong together are neighbours."""
    for group in GROUPS:
        if all(key in schema for key in group):
            apart = {key: schema[key] for key in group}
            schema = {**{key: schema[key] for key in schema if key not in group}, **apart}
    return schema


def _kept_pattern(pattern: str) -> str:
    """A pattern of which no class holds the character U+0000, which no text can hold.

    The compiler adds the quote and the backslash to a class that holds all control characters, even
    where it excludes them.
    """

    def kept(found: re.Match[str]) -> str:
        signs = found[1]
        if signs is None:  # an escape
            return found[0]
        _require_plain(signs, pattern)
        few = signs[0] == "[" and signs[1] != "^" and not {"\\", "\0"} & {*signs}
        return signs if few else rf"[{signs}&&[^\x00]]"

    return CHARACTERS.sub(kept, pattern)


def _require_plain(signs: str, pattern: str) -> None:
    """Raise ValueError for a class of characters that the compiler reads as sets."""
    for sign in re.findall(r"\\.|&&|--|~~|.", signs[1:], re.DOTALL):
        if sign in SET_SIGNS:
            raise ValueError(
                f"the JSON schema cannot be followed: the pattern {pattern[:100]!r} has {sign} in a"
                " class of characters; write a backslash before each of them"
            )


def _require_few_alternatives(schema: Mapping[str, Any]) -> None:
    """Raise ValueError where one of many optional properties must be there, and no others may."""
    least, names = schema.get("minProperties"), {*_names(schema.get("properties"))}
    listed = schema.get("required")
    required = {str(name) for name in listed} if isinstance(listed, list | tuple) else set[str]()
    if not isinstance(least, int) or schema.get("additionalProperties") is not False:
        return
    optional = len(names - required)
    if least == len(required) + 1 and optional > MOST_OPTIONAL:
        raise ValueError(
            f"the JSON schema cannot be followed: minProperties {least} with {optional} optional"
            f" properties; the most are {MOST_OPTIONAL}"
        )


def _names(value: object) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, Mapping) else ()
