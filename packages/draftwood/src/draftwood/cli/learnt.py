"""Options of ``draftwood tune`` by which packages learn something of a model."""

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import options
from draftwood.optional import entry_points

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from draftwood.text.language_model import LanguageModel

LEARNT = "draftwood.tuning"
"""Entry points of packages, each an option: a function that learns something of a language model
from a text, None for its own, within seconds, stores it and gives it by name.
"""

Learn = Callable[["LanguageModel", float], None]
"""Learns of a model within seconds, and tells what."""


def learnt_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for everything that packages learn of a model."""
    for entry in reversed(entry_points(LEARNT)):
        told = f"Learn instead what rule {entry.name!r} needs, from FILE or a text of its own."
        command = click.option(
            f"--{entry.name}",
            is_flag=False,
            flag_value="",
            callback=partial(_keep, entry),
            expose_value=False,
            metavar="[FILE]",
            help=told,
        )(command)
    return command


def _keep(
    entry: "EntryPoint", context: click.Context, parameter: click.Parameter, file: str | None
) -> None:
    if file is not None:
        text = options.TextFile().convert(file, parameter, context) if file else None
        context.meta[LEARNT] = partial(_learn, entry, text)


def _learn(
    entry: "EntryPoint", text: str | None, lm: "LanguageModel", seconds: float, as_json: bool
) -> None:
    found: dict[str, Any] = entry.load()(lm, text, seconds)
    told = ", ".join(f"{name} {value}" for name, value in found.items())
    click.echo(json.dumps(found) if as_json else told)


def learner(context: click.Context, as_json: bool) -> Learn | None:
    """Give what the command was asked to learn; None where it measures."""
    found = context.meta.get(LEARNT)
    return None if found is None else partial(found, as_json=as_json)
