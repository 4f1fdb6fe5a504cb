"""Random JSON schemas of the kinds that people ask for."""

import random
from typing import Any

WORDS = ("name", "age", "city", "tags", "items", "id", "score", "kind", "active", "notes")


def random_schema(seed: int) -> dict[str, Any]:
    """An object with a few properties, up to three levels deep; texts of it are short."""
    rng = random.Random(seed)
    schema = _object(rng, 2)
    if rng.random() < 0.2:
        schema["$defs"] = {"leaf": _value(rng, 0)}
        schema["properties"]["leaf"] = {"$ref": "#/$defs/leaf"}
    return schema


def random_lists(seed: int) -> dict[str, Any]:
    """Short lists, some of them in lists: behind each item the text may go on or end."""
    rng = random.Random(seed)
    kinds: list[dict[str, Any]] = [
        {"enum": ["x", "y"]},
        {"type": "boolean"},
        {"type": "integer", "minimum": 0, "maximum": 3},
    ]
    items = rng.choice(kinds)
    for _ in range(rng.randint(1, 2)):
        items = {"type": "array", "items": items, "maxItems": rng.randint(1, 3)}
    return {
        "type": "object",
        "properties": dict.fromkeys(("t", "u")[: rng.randint(1, 2)], items),
        "additionalProperties": False,
    }


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(WORDS, rng.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: _value(rng, depth - 1) for name in names},
        "required": rng.sample(names, rng.randint(0, len(names))),
        "additionalProperties": rng.random() < 0.2,
    }


def _value(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["text", "choice", "whole", "number", "flag", "null", "pattern", "date", "const"]
    if depth > 0:
        kinds += ["object", "list", "either", "tuple"] * 2
    kind = rng.choice(kinds)
    low = rng.randint(-20, 20)
    simple: dict[str, dict[str, Any]] = {
        "text": {"type": "string", "maxLength": rng.randint(1, 12)},
        "choice": {"enum": rng.sample([*WORDS, 1, 2.5, None, True], rng.randint(1, 4))},
        "whole": {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 300)},
        "number": {"type": "number", "minimum": 0, "exclusiveMaximum": 100},
        "flag": {"type": "boolean"},
        "null": {"type": ["null", "integer"], "maximum": 50},
        "pattern": {"type": "string", "pattern": rng.choice(["^[a-z]{2,5}$", r"^\d{3}-\d{2}$"])},
        "date": {"type": "string", "format": "date"},
        "const": {"const": rng.choice(WORDS)},
    }
    if kind in simple:
        return simple[kind]
    if kind == "object":
        return _object(rng, depth)
    if kind == "either":
        return {"anyOf": [_value(rng, depth - 1), _value(rng, depth - 1)]}
    if kind == "tuple":
        parts = [_value(rng, 0), _value(rng, 0)]
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": 1}
    low = rng.randint(0, 2)
    return {
        "type": "array",
        "items": _value(rng, depth - 1),
        "minItems": low,
        "maxItems": low + rng.randint(0, 3),
    }
