"""Checks of options and of the files that they name.

A refusal is one line that names the option, what it must be, and what came.
"""

import json
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol

LARGEST = 64 * 1024
"""Bytes of a schema or grammar."""
MOST_BIAS = 1e38
"""Bound of a bias; logits are in float32."""


class HasJsonSchema(Protocol):
    """A class whose objects are read from JSON, as Pydantic's models are."""

    def model_json_schema(self) -> Mapping[str, Any]: ...


JsonSchema = Mapping[str, Any] | str | HasJsonSchema | type[HasJsonSchema]
"""A schema as a dict, as JSON, or that of a class."""


def require_number(name: str, value: object, wanted: str = "a number") -> None:
    """Raise TypeError unless this is a number; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {wanted}, got {value!r}")


def require_whole(name: str, value: object, wanted: str = "a whole number") -> None:
    """Raise TypeError unless this is a whole number; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be {wanted}, got {value!r}")


def require_count(name: str, value: int) -> None:
    """Raise TypeError or ValueError unless this is a whole number above zero."""
    require_whole(name, value, "a whole number >= 1")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def require_kind(name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Raise TypeError unless this is of a type, or None."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} must be {wanted}, got {value!r:.80}")


def require_flag(name: str, value: object) -> None:
    """Raise TypeError unless this is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def require_biases(name: str, value: object) -> None:
    """Raise TypeError or ValueError unless this maps token ids to biases."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict from token ids to numbers, got {value!r:.80}")
    for token, bias in value.items():
        require_whole(f"each token of {name}", token)
        require_number(f"{name} of token {token}", bias)
        if not bias < MOST_BIAS:
            raise ValueError(
                f"{name} of token {token} must be below {MOST_BIAS:g}, or minus infinity to ban it,"
                f" got {bias}"
            )


def stop_strings(stop: str | Sequence[str] | None) -> list[str]:
    """Stop strings as a list; TypeError or ValueError for what is none."""
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, (list, tuple)) or not all(isinstance(each, str) for each in stops):
        raise TypeError(f"stop must be a string, a list of strings or None, got {stop!r}")
    if "" in stops:
        raise ValueError("a stop string must not be empty")
    return list(stops)


def positive(name: str, values: Sequence[int]) -> None:
    """Raise ValueError unless every value is a whole number above zero."""
    if not values or any(value < 1 for value in values):
        raise ValueError(f"{name} must be whole numbers above 0, got {values}")


def require_like_size(target: int, draft: int) -> None:
    """Raise ValueError where one vocabulary is more than a tenth larger than the other."""
    if max(target, draft) > 1.1 * min(target, draft):
        raise ValueError(
            f"the draft model knows {draft} tokens and the target {target}; use a draft model of"
            " the target's own family"
        )


def schema_text(schema: JsonSchema) -> str:
    """A JSON schema as JSON; of a class of Pydantic, that of its objects.

    Raises:
        TypeError: for another type.
        ValueError: for what is no JSON object, too deep for one, or too large.
    """
    of_class: Any = getattr(schema, "model_json_schema", None)
    try:
        given = of_class() if callable(of_class) else schema
    except Exception as error:  # Pydantic's own, of fields that no JSON can have
        told = " ".join(str(error).split())
        name = getattr(schema, "__name__", type(schema).__name__)
        raise ValueError(f"the class {name} has no JSON schema: {told}") from None
    if not isinstance(given, (Mapping, str)):
        raise TypeError(
            "a JSON schema is a dict, a JSON text or a class of Pydantic, got"
            f" {type(given).__name__}"
        )
    try:
        text = given if isinstance(given, str) else json.dumps(given, allow_nan=False)
        if not isinstance(json.loads(text), dict):
            raise ValueError("a schema is an object")
    except RecursionError:
        raise ValueError("the JSON schema is nested too deeply") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"the JSON schema is no JSON: {error}") from None
    require_small("the JSON schema", text)
    return text


def require_one_grammar(schema: object, grammar: object) -> None:
    """Raise ValueError where both a schema and a grammar are given."""
    if schema is not None and grammar is not None:
        raise ValueError("a text has a json_schema or a grammar, not both; leave one out")


def require_small(what: str, text: str) -> None:
    """Raise ValueError for a schema or grammar that is no UTF-8, or larger than ``LARGEST``."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} holds a lone surrogate at character {error.start}: half of a character"
        ) from None
    if size > LARGEST:
        raise ValueError(f"{what} has {size} bytes; the most are {LARGEST}")


def require_file(path: Path, kind: str) -> None:
    """Refuse a path without a file.

    Args:
        kind: of file, and the command that builds it.

    Raises:
        ValueError: for a folder.
        FileNotFoundError: where there is nothing.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a {kind}'s file")
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no {kind} {path}; make it with 'draftwood {kind} build', or name another one"
        )
