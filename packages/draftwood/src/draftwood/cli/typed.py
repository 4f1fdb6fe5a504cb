"""Leave out defaults that would exclude what is typed, which wins."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli.toml_text import Table

if TYPE_CHECKING:
    from draftwood.methods.needs import Spec

APART = (
    *(("prompt", "file"), ("json_schema", "grammar"), ("raw", "system"), ("save", "resume")),
    *(("min_tokens", "json_schema"), ("min_tokens", "grammar"), ("answers", "show_tree")),
)
"""Parameters of which a command takes one."""
DRAFTING = ("draft_model", "datastore", "tree", "overlap")
"""Parameters that a method may have no use for, and is refused with."""
FILLING = ("mask_token", "block_length", "shifted", "show")
"""Parameters of methods that fill masks."""


def typed_values(command: click.Command, arguments: Sequence[str]) -> dict[str, Any]:
    """Read what is typed behind a command's name, by parameter, as it is typed."""
    parser = command.make_parser(click.Context(command, resilient_parsing=True))
    found, _, order = parser.parse_args([*arguments])
    return {
        str(each.name): found[str(each.name)]
        for each in order
        if isinstance(each, click.Option) or isinstance(found.get(str(each.name)), str)
    }


def without_excluded(found: Table, typed: Mapping[str, Any], name: str) -> Table:
    """Defaults without those that a command refuses beside what is typed.

    Args:
        found: defaults by parameter.
        typed: as ``typed_values`` tells.
        name: of the command.
    """
    pairs = [pair for one, other in APART for pair in ((one, other), (other, one))]
    gone = {other for one, other in pairs if one in typed}
    if _length(typed, "max_new_tokens", 1 << 62) < _length(found, "min_tokens", 0):
        gone.add("min_tokens")
    if _length(found, "max_new_tokens", 1 << 62) < _length(typed, "min_tokens", 0):
        gone.add("max_new_tokens")
    kept = {key: value for key, value in found.items() if key not in gone or key in typed}
    return _for_methods(kept, typed, name)


def _length(values: Mapping[str, Any], name: str, other: int) -> int:
    try:
        return int(values.get(name, other))
    except (TypeError, ValueError):  # refused when it is read
        return other


def _for_methods(found: Table, typed: Mapping[str, Any], name: str) -> Table:
    """Defaults without what the typed methods have no use for, and without a method that has none
    for what is typed.
    """
    named = typed.get("method", typed.get("methods"))
    about = set(DRAFTING if name != "chat" else ("tree",))  # a chat may use others later
    about |= {*FILLING, "show_tree"}
    if isinstance(named, str):
        theirs = {key: found[key] for key in about & found.keys() - typed.keys()}
        used = _used(theirs, named)
        return {
            key: used.get(key, value)
            for key, value in found.items()
            if key in used or key not in theirs
        }
    mine = {key: typed[key] for key in about & typed.keys()}
    named = found.get("method")
    if named is None or not isinstance(named, str) or _used(mine, named) == mine:
        return found
    return {key: value for key, value in found.items() if key != "method"}


def _used(values: dict[str, Any], named: str) -> dict[str, Any]:
    """Choose the values for which methods have use; all where no such method is known."""
    if not values:
        return values
    from draftwood import methods
    from draftwood.methods.answers import answers_method

    with suppress(ValueError, OSError):  # refused when it is read
        if (other := answers_method(named)) is not None:
            kept = {*other.needs, *(FILLING if other.adjust else ())}
            return {key: value for key, value in values.items() if key in kept}
        names = [each.strip() for each in named.split(",")]
        specs = [methods.spec(each) for each in names]
        found = {key: value for key, value in values.items() if key not in FILLING}
        if not any(each.drafts_ahead for each in specs):
            found.pop("overlap", None)
        if not any("datastore" in each.needs | each.uses for each in specs):
            found.pop("datastore", None)
        if drafts := _drafts(found.pop("draft_model", ()), specs):
            found["draft_model"] = drafts
        return _with_drawn_tree(found, names)
    return values


def _drafts(given: Any, specs: "Sequence[Spec]") -> list[str]:
    """Draft models and heads that some of the methods use."""
    from draftwood import methods
    from draftwood.methods.drafts import Drafts

    every = [given] if isinstance(given, str) else [*given]
    told = Drafts.of(every)
    used = {need for each in specs for need in methods.taken(each, told.given)}
    if not told.fits(specs):
        used -= {"head"}
    return [each for each in every if Drafts.of(each).given <= used]


def _with_drawn_tree(values: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Values without a tree that none of the methods can draw."""
    from draftwood import methods

    try:
        methods.require_tree(names, values.get("tree"))
    except (TypeError, ValueError):
        return {key: value for key, value in values.items() if key != "tree"}
    return values
