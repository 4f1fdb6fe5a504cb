"""`draftwood config`: defaults of options, kept in a file."""

import json
from collections.abc import Sequence
from dataclasses import fields
from functools import reduce
from typing import Any

import click

from draftwood.cli import options, toml_text
from draftwood.cli.configuration import (
    SHARED,
    VARIABLE,
    KnownCommands,
    check_all,
    config_path,
    flag_of,
    flat,
    read_config,
)
from draftwood.cli.terminal import notes
from draftwood.storage.home import expanded

NAMES = ("model", "draft_model", "datastore", "adapter")
"""Parameters that may name a file or folder."""


@click.group(invoke_without_command=True)
@click.pass_context
def config(context: click.Context) -> None:
    """Keep defaults of options in a file of TOML; what is typed in the command line wins.

    KEY is COMMAND.OPTION, or OPTION alone for each of the commands that load a model to write or
    measure and have it.

    \b
    Examples:
      draftwood config set model qwen2.5-coder-1.5b
      draftwood config set chat.system "Answer in one sentence."
      draftwood config unset model
      draftwood config
    """
    if context.invoked_subcommand is None:
        context.invoke(show)


@config.command(short_help="Print what the file says.")
@options.as_json
@click.pass_context
def show(context: click.Context, as_json: bool = False) -> None:
    """Print all keys and values, checked.

    \b
    Example:
      draftwood config show --json
    """
    found = read_config()
    check_all(context.find_root(), found)
    if as_json:
        click.echo(json.dumps(found))
        return
    if not found:
        said = f"nothing is set in {config_path()}; 'draftwood config set KEY VALUE' does"
        notes().print(said, style="dim", markup=False, soft_wrap=True)
    for key, value in flat(found):
        click.echo(f"{key} = {toml_text.form(value)}")


@config.command(short_help="Print the file's path.")
def path() -> None:
    """Print the path of the file, there or not; $DRAFTWOOD_CONFIG names another.

    \b
    Example:
      draftwood config path
    """
    click.echo(config_path())


# values may be negative numbers
@config.command(
    "set", short_help="Set a default.", context_settings={"ignore_unknown_options": True}
)
@click.argument("key")
@click.argument("values", metavar="VALUE...", nargs=-1, required=True)
@click.pass_context
def set_(context: click.Context, key: str, values: tuple[str, ...]) -> None:
    """Set the default of an option; several values are for one that is repeatable.

    \b
    Examples:
      draftwood config set threads 4
      draftwood config set generate.max-new-tokens 512
    """
    place = _place(key)
    known = KnownCommands.of(context.find_root())
    command, parameter = known.parameter(place)
    if _may_name_a_file(parameter) and not all(values):
        raise ValueError(
            f"{key} takes a name or a path, got an empty text; 'draftwood config unset {key}' takes"
            " a default back"
        )
    value = _typed(command, parameter, values)
    known.check(reduce(lambda inner, key: {key: inner}, reversed(place), value))
    if len(place) == 1 or place[0] in SHARED:
        for each in value if isinstance(value, list) else [value]:
            _require_name(place[-1], each)
    _write(place, value)


@config.command(short_help="Take a default back.")
@click.argument("key")
def unset(key: str) -> None:
    """Remove a key, or a command's whole table.

    \b
    Example:
      draftwood config unset generate.max-new-tokens
    """
    found: Any = read_config()
    there, place = ", ".join(name for name, _ in flat(found)) or "nothing", []
    for part in key.split("."):
        written = {flag_of(each): each for each in found} if isinstance(found, dict) else {}
        if flag_of(part) not in written:
            raise ValueError(f"{config_path()} does not set {key}; it sets {there}")
        place.append(written[flag_of(part)])
        found = found[place[-1]]
    _write(place, None)


def _place(key: str) -> tuple[str, ...]:
    *commands, option = key.removeprefix("--").split(".")
    return (*commands, flag_of(option.removeprefix("--")))


def _require_name(flag: str, value: Any) -> None:
    """Refuse the name of a method, model, type or device that means nothing.

    Args:
        flag: of the option.
        value: of a server with several models, it may have the model's name and ``=`` before it.

    Raises:
        ValueError: with the names there are.
        FileNotFoundError: for a path where nothing is.
    """
    from draftwood import methods
    from draftwood.loading.names import is_hub_id
    from draftwood.methods.answers import answers_method
    from draftwood.model_names import ModelNames

    if not isinstance(value, str) or (value and expanded(value).exists()):
        return
    named = value.rpartition("=")[2]
    if flag in ("method", "methods"):
        if answers_method(value) is None:
            for each in named.split(","):
                methods.listing(each.strip())
        return
    given: dict[str, Any] = {flag.replace("-", "_"): named}
    # whether the hub has a model is asked when it is loaded
    names = {each.name for each in fields(ModelNames) if each.metadata}
    if given.keys() <= names and not is_hub_id(named):
        ModelNames(**given).require()


def _typed(command: click.Command, parameter: click.Parameter, values: tuple[str, ...]) -> Any:
    """Values as the file holds them: numbers, truth values, or texts.

    Raises:
        click.UsageError: for several values of an option that takes one.
    """
    if getattr(parameter, "multiple", False):
        return [_one(command, parameter, each) for each in values]
    if len(values) != 1:
        raise click.UsageError(f"{parameter.name} takes one value; put it in quotes")
    return _one(command, parameter, values[0])


def _one(command: click.Command, parameter: click.Parameter, text: str) -> Any:
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return {"true": True, "false": False}.get(text.lower(), text)
    if _may_name_a_file(parameter) and expanded(text).exists():
        return str(expanded(text).absolute())
    try:
        found = parameter.type.convert(text, parameter, click.Context(command))
    except click.BadParameter:
        return text  # refused with the others
    return found if isinstance(found, int | float) else text


def _may_name_a_file(parameter: click.Parameter) -> bool:
    return isinstance(parameter.type, options.TextFile | click.Path) or parameter.name in NAMES


def _require_apart(found: dict[str, Any], place: Sequence[str]) -> None:
    """Raise ValueError for a value where a command's table is, and for a table where a value is."""
    for number, key in enumerate(place, 1):
        there = found.get(key)
        if there is not None and isinstance(there, dict) != (number < len(place)):
            path, kind = ".".join(place[:number]), "table" if isinstance(there, dict) else "value"
            raise ValueError(
                f"{config_path()} has a {kind} {path}, beside which TOML takes no other; 'draftwood"
                f" config unset {path}' makes room for {'.'.join(place)}"
            )
        found = there or {}


def _write(place: Sequence[str], value: Any) -> None:
    """Change the file, which its owner alone may read, as keys of servers may stand there.

    Raises:
        ValueError: for a path that is no file.
    """
    from draftwood.storage.atomic import explain_write_errors, for_its_owner, locked, write_file

    path = config_path()
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file that can be changed; set {VARIABLE} to another one")
    elsewhere = f"set {VARIABLE} to another"
    with explain_write_errors(path, elsewhere):
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path):
            text = ""
            if path.exists():
                found = read_config()  # what is broken is refused in its words
                if value is not None:
                    _require_apart(found, place)
                text = path.read_text(encoding="utf-8-sig")
            changed = for_its_owner(toml_text.with_value(text, place, value))
            write_file(path, changed, lambda at: explain_write_errors(at, elsewhere))
