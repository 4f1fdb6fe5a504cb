"""The few forms of TOML that a file of options needs, read and changed line by line."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(#.*)?")
BARE = re.compile(r"[A-Za-z0-9_-]+")

Table = dict[str, Any]


def parse(text: str) -> Table:
    """Read TOML.

    Raises:
        ValueError: for anything else, naming line and column.
    """
    return import_module("tomllib" if sys.version_info >= (3, 11) else "tomli").loads(text)


def with_value(text: str, path: Sequence[str], value: Any) -> str:
    """A text in which one value is changed, everything else as it was written.

    Args:
        path: tables and key.
        value: a text, number, truth value or list of those; None takes the key out.
    """
    wanted = _changed(parse(text), path, value)
    line = None if value is None else f"{_key(path[-1])} = {form(value)}"
    for length in range(1, text.count("\n") + 2):  # lines of the value before
        edited = _edited(text, path, line, length)
        if _reads_as(edited, wanted):
            return edited
    for end in range(len(path), 0, -1) if value is None else ():
        edited = _without_table(text, path[:end])
        if _reads_as(edited, wanted):
            return edited
    return dump(wanted)  # inline tables, dotted keys


def _reads_as(text: str, wanted: Table) -> bool:
    try:
        return parse(text) == wanted
    except ValueError:
        return False


def dump(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Write tables of values."""
    own = [f"{_key(k)} = {form(v)}" for k, v in table.items() if not isinstance(v, Mapping)]
    head = [f"[{'.'.join(map(_key, path))}]"] if path and own else []
    inner = [dump(v, (*path, k)) for k, v in table.items() if isinstance(v, Mapping)]
    parts = ["\n".join([*head, *own]) + "\n"] if own else []
    return "\n".join(parts + [each for each in inner if each])


def form(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(form, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _key(name: str) -> str:
    return name if BARE.fullmatch(name) else form(name)


def _changed(table: Table, path: Sequence[str], value: Any) -> Table:
    """Tables with a value in its place; those that are empty then are left out."""
    first, *rest = path
    inner = _changed(table.get(first) or {}, rest, value) if rest else value
    changed = {**table, first: inner}
    if inner is None or inner == {}:
        del changed[first]
    return changed


def _without_table(text: str, path: Sequence[str]) -> str:
    """Lines without those of a table and of tables in it."""
    kept, inside, name = list[str](), False, f"{'.'.join(path)}."
    for each in text.split("\n"):
        if header := HEADER.fullmatch(each):
            inside = f"{header[1].strip()}.".startswith(name)
        kept += [] if inside else [each]
    return "\n".join([*kept, ""] if inside else kept)


def _edited(text: str, path: Sequence[str], line: str | None, length: int) -> str:
    """Lines with one value's replaced, taken out, or a line put behind the last of its table.

    Args:
        length: lines of the value.
    """
    lines, table = text.removesuffix("\n").split("\n") if text else [], ".".join(path[:-1])
    key = re.compile(rf"\s*{re.escape(_key(path[-1]))}\s*=")
    inside, last = table == "", -1 if table else 0
    for number, each in enumerate(lines):
        if header := HEADER.fullmatch(each):
            inside = header[1].strip() == table
        if inside and key.match(each):
            lines[number : number + length] = [] if line is None else [line]
            return "\n".join([*lines, ""])
        if inside and each.strip():
            last = number + 1
    if line is not None:
        new = [line] if last >= 0 else [*([""] if lines else []), f"[{table}]", line]
        place = last if last >= 0 else len(lines)
        lines[place:place] = new
    return "\n".join([*lines, ""])
