"""Leave out defaults that would exclude what is typed, which wins."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli.toml_text import Table

if TYPE_CHECKING:
    from draftwood.methods.needs import Spec

RECIPES = (
    *("acceptance", "ctc", "dflash", "eagle", "hydra", "lm", "longspec", "masked", "medusa"),
    *("s2d", "specdec"),
)
UNITS = (
    ("steps", "tokens", "minutes", "cpu_minutes"),
    *(("tokens", "minutes", "cpu_minutes"), ("minutes", "cpu_minutes")),
)
"""Trainings of drafters, and how they say how long they last."""
APART: dict[str, tuple[tuple[str, ...], ...]] = {
    "": (
        *(("prompt", "file"), ("json_schema", "grammar"), ("raw", "system"), ("save", "resume")),
        *(("min_tokens", "json_schema", "grammar"), ("answers", "show_tree")),
    ),
    "bench rsd": (("thrifty", "timed_from"),),
    "bench show": (("as_json", "markdown", "orderings"),),
    "draw": (("show", "as_json"),),
    "plan": (
        *(("model", "parameters"), ("measure", "hardware", "bandwidth", "compute")),
        ("hardware", "bandwidth", "compute"),
    ),
    "serve": (("replicas", "learn", "tp"), ("learn", "tp")),
    **{f"train {each}": UNITS for each in RECIPES},
    "train data": (("only_held_out", "self_written"),),
    "train diffusion": (("steps", "minutes"),),
    "train images": (("steps", "minutes"), ("classifier_only", "export_only")),
    "tune": (("sizes", "asked", "draft_model", "datastore"),),
}
"""Parameters of commands and of those in them: the first of each row excludes the others."""
DRAFTING = ("draft_model", "datastore", "tree", "overlap")
"""Parameters that a method may have no use for, and is refused with."""
FILLING = ("mask_token", "block_length", "shifted", "show")
"""Parameters of methods that fill masks."""


def without_excluded(
    found: Table, command: click.Command, arguments: Sequence[str], *path: str
) -> Table:
    """Defaults without those that a command refuses beside what is typed, or one in it does.

    Args:
        found: defaults by parameter.
        command: that takes them.
        arguments: that are typed behind its name.
        path: names of the command and of those around it.
    """
    typed, rest = _typed(command, arguments)
    kept = _for_methods(_apart(found, typed, path), typed, path[0])
    if not (isinstance(command, click.Group) and rest and isinstance(kept.get(rest[0]), dict)):
        return kept
    inner = command.get_command(click.Context(command), rest[0])
    assert inner is not None  # it has a table, which was checked
    return {**kept, rest[0]: without_excluded(kept[rest[0]], inner, rest[1:], *path, rest[0])}


def _typed(command: click.Command, arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Values that are typed behind a command's name, by parameter and unread, and what follows."""
    parser = command.make_parser(click.Context(command, resilient_parsing=True))
    found, rest, order = parser.parse_args([*arguments])
    typed = {
        str(each.name): found[str(each.name)]
        for each in order
        if isinstance(each, click.Option) or isinstance(found.get(str(each.name)), str)
    }
    return typed, rest


def _apart(found: Table, typed: Mapping[str, Any], path: Sequence[str]) -> Table:
    """Defaults without what excludes, or is excluded by, something typed."""
    known = [each for end in range(len(path) + 1) for each in APART.get(" ".join(path[:end]), ())]
    pairs = [(first, other) for first, *others in known for other in others]
    pairs += [(other, first) for first, other in pairs]
    gone = {other for one, other in pairs if one in typed}
    if _length(typed, "max_new_tokens", 1 << 62) < _length(found, "min_tokens", 0):
        gone.add("min_tokens")
    if _length(found, "max_new_tokens", 1 << 62) < _length(typed, "min_tokens", 0):
        gone.add("max_new_tokens")
    return {key: value for key, value in found.items() if key not in gone or key in typed}


def _length(values: Mapping[str, Any], name: str, other: int) -> int:
    try:
        return int(values.get(name, other))
    except (TypeError, ValueError):  # refused when it is read
        return other


def _for_methods(found: Table, typed: Mapping[str, Any], name: str) -> Table:
    """Defaults without what the typed methods have no use for, and without a method that has none
    for what is typed.
    """
    if name == "draw":  # its --show is no method's
        return found
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
