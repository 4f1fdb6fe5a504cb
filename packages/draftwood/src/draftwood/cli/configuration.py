"""Defaults of commands' options, which users keep in one file of TOML.

A key at the top is for each of ``SHARED`` that has such an option, a table for one command.
"""

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import click

from draftwood.cli.text_files import with_files
from draftwood.cli.toml_text import Table, parse
from draftwood.cli.typed import without_excluded
from draftwood.storage.home import expanded, home

VARIABLE = "DRAFTWOOD_CONFIG"
"""Variable of the environment that names another file."""
SHARED = ("generate", "chat", "embed", "compare", "demo", "check", "tune", "serve")
"""Commands for which the keys at the top are: those that load a model to write or to measure."""
WITHOUT = ("config", "completion", "models", "fetch", "methods")
"""Commands that take no defaults, and help to mend the file."""


def config_path() -> Path:
    """The file, there or not."""
    told = os.environ.get(VARIABLE)
    return expanded(told) if told else home() / "config.toml"


def read_config() -> Table:
    """Read the file; nothing where there is none.

    Raises:
        ValueError: for a file that is no TOML, naming the line.
        OSError: for one that cannot be read, and one that is named and not there.
    """
    path = config_path()
    try:
        return parse(path.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        if os.environ.get(VARIABLE):
            raise FileNotFoundError(
                f"{VARIABLE} names {path}, which is not there; 'draftwood config set' makes it, or"
                f" unset {VARIABLE}"
            ) from None
        return {}
    except IsADirectoryError:
        raise IsADirectoryError(f"{path} is a folder; set {VARIABLE} to a file") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; write it again, or remove it") from None
    except ValueError as error:
        raise ValueError(f"{path} is no TOML: {error}; mend that line") from None


def defaults(context: click.Context, name: str) -> Table:
    """Defaults of the command that is about to run, as click takes them.

    Those that it refuses beside what is typed are left out.

    Args:
        context: of the group of all commands; its ``obj`` are all arguments.

    Raises:
        ValueError: for a key that the command has not, or a value that it does not take.
    """
    found, known = read_config(), KnownCommands.of(context)
    if not found:
        return {}
    with _naming_the_file():
        for key, value in found.items():
            if isinstance(value, Mapping):
                known.require_command(key)
            else:
                known.require_shared(key)
        command = known.command((name,))
        shared = known.checked(command, _shared(found, command, name), ())
        own = known.checked(command, found.get(name), (name,))
    arguments = context.obj or [name]
    return without_excluded(shared | own, command, arguments[arguments.index(name) + 1 :], name)


def at_fault(context: click.Context, told: str) -> Iterator[str]:
    """Say where a default lies that an error names, and how to take it out.

    Args:
        context: as ``defaults`` takes it, with the command that failed.
        told: what the error says.
    """
    name, arguments = context.invoked_subcommand, context.obj or []
    typed = {each.partition("=")[0] for each in arguments}
    for key, value in () if name in (None, *WITHOUT) else flat(read_config()):
        *path, option = key.split(".")
        flag = f"--{flag_of(option)}"
        is_own = path[0] == name and {*path} <= {*arguments} if path else name in SHARED
        if is_own and value is not False and flag not in typed and _names(told, flag):
            cure = f"'draftwood config unset {key}' takes it out"
            yield f"{flag} is set in {config_path()}; {cure}"


def _names(told: str, flag: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", told) is not None


def flat(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    """Keys with the commands before them, and their values."""
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        own = (*path, key)
        found += flat(value, own) if isinstance(value, Mapping) else [(".".join(own), value)]
    return found


def _shared(found: Mapping[str, Any], command: click.Command, name: str) -> Table:
    own = options_of(command) if name in SHARED else {}
    return {
        key: value
        for key, value in found.items()
        if flag_of(key) in own and not isinstance(value, Mapping)  # a table is a command's
    }


def check_all(context: click.Context, found: Table) -> None:
    """Refuse every key and value that some command would refuse.

    Raises:
        ValueError: naming the file, the key and the cure.
    """
    with _naming_the_file():
        KnownCommands.of(context).check(found)


class KeyRefusedError(ValueError):
    """A key that no command has, or a value that its option does not take.

    Attributes:
        key: with the commands before it.
    """

    def __init__(self, place: Sequence[str], reason: str) -> None:
        self.key = ".".join(place)
        super().__init__(f"{self.key} {reason}")


@contextmanager
def _naming_the_file() -> Iterator[None]:
    try:
        yield
    except KeyRefusedError as error:
        raise ValueError(
            f"{config_path()}: {error}; 'draftwood config unset {error.key}' takes it out"
        ) from None


def options_of(command: click.Command) -> dict[str, click.Parameter]:
    """Parameters that may have a default in the file, by the name of their flag."""
    found: dict[str, click.Parameter] = {}
    for each in command.get_params(click.Context(command)):  # some are made when they are asked for
        if isinstance(each, click.Argument) and isinstance(each.default, str):
            found[str(each.name)] = each
        if isinstance(each, click.Option) and not each.hidden and not each.is_eager:
            found |= {flag.lstrip("-"): each for flag in each.opts if flag.startswith("--")}
    return found


def flag_of(key: str) -> str:
    """The flag that a key means, which may be written like a name of Python."""
    return key.replace("_", "-")


@dataclass(frozen=True)
class KnownCommands:
    """The commands there are.

    Attributes:
        context: of the group of all of them.
        group: that group.
    """

    context: click.Context
    group: click.Group

    @classmethod
    def of(cls, context: click.Context) -> "KnownCommands":
        """The commands of a context's group."""
        assert isinstance(context.command, click.Group)
        return cls(context, context.command)

    def require_command(self, name: str) -> None:
        """Refuse a table of no command; none is loaded for it."""
        names = self.group.list_commands(self.context)
        if name not in names:
            raise KeyRefusedError((name,), f"is no command of draftwood{_hint(name, names)}")

    def command(self, path: tuple[str, ...]) -> click.Command:
        """A command by the names that lead to it.

        Raises:
            KeyRefusedError: where there is none.
        """
        found: click.Command = self.group
        for number, name in enumerate(path):
            names = found.list_commands(self.context) if isinstance(found, click.Group) else []
            if name not in names:
                told = f"is no command of draftwood{_hint(name, names)}"
                raise KeyRefusedError(path[: number + 1], told)
            assert isinstance(found, click.Group)
            inner = found.get_command(self.context, name)
            assert inner is not None
            found = inner
        return found

    def shared(self) -> Iterator[click.Command]:
        """Commands of ``SHARED`` that are installed."""
        names = self.group.list_commands(self.context)
        return (self.command((name,)) for name in SHARED if name in names)

    def require_shared(self, key: str) -> list[click.Command]:
        """Commands for which a key at the top is.

        Raises:
            KeyRefusedError: where there is none.
        """
        found, flags = list[click.Command](), set[str]()
        for command in self.shared():
            flags |= options_of(command).keys()
            found += [command] if flag_of(key) in options_of(command) else []
        if not found:
            told = f"is no option of {', '.join(SHARED)}{_hint(flag_of(key), flags)}"
            raise KeyRefusedError((key,), told)
        return found

    def check(self, found: Mapping[str, Any]) -> None:
        """Raise KeyRefusedError for a key or value that some command would refuse."""
        for key, value in found.items():
            if isinstance(value, Mapping):
                self.checked(self.command((key,)), value, (key,))
            else:
                for command in self.require_shared(key):
                    self.checked(command, {key: value}, ())

    def parameter(self, place: tuple[str, ...]) -> tuple[click.Command, click.Parameter]:
        """The parameter that a key means, and a command that has it.

        Raises:
            KeyRefusedError: where there is none.
        """
        shared = len(place) == 1
        if not shared and place[0] in WITHOUT:
            raise KeyRefusedError(place, f"has no effect: '{place[0]}' takes no defaults")
        command = self.require_shared(place[0])[0] if shared else self.command(place[:-1])
        return command, _option(command, place)

    def checked(self, command: click.Command, table: Any, path: tuple[str, ...]) -> Table:
        """Values by the names of parameters, nested as commands are.

        Args:
            path: that led to the table.

        Raises:
            KeyRefusedError: for a key or value that is refused.
        """
        made: Table = {}
        for key, value in (table or {}).items():
            place = (*path, key)
            if isinstance(value, Mapping):
                made[key] = self.checked(self.command(place), value, place)
            else:
                parameter = _option(command, place)
                made[str(parameter.name)] = _value(command, parameter, place, value)
        return made


def _option(command: click.Command, place: tuple[str, ...]) -> click.Parameter:
    flag, known = flag_of(place[-1]), options_of(command)
    if flag not in known:
        owner = " ".join(("draftwood", *place[:-1]))
        raise KeyRefusedError(place, f"is no option of '{owner}'{_hint(flag, known)}")
    return known[flag]


def _value(
    command: click.Command, parameter: click.Parameter, place: tuple[str, ...], value: Any
) -> Any:
    """A value that an option takes; a single one of an option that is repeatable is a list."""
    flag = isinstance(parameter, click.Option) and parameter.is_flag
    several = bool(getattr(parameter, "multiple", False))
    values = value if isinstance(value, list) and several else [value]
    if any(
        isinstance(each, bool) != flag or not isinstance(each, str | int | float) for each in values
    ):
        wanted = "true or false" if flag else "a text or a number"
        raise KeyRefusedError(place, f"takes {wanted}, not {value!r:.80}")
    given = values if several else value
    try:
        cast = parameter.type_cast_value(click.Context(command), given)
        _require_option(str(parameter.name), cast)
    except (click.BadParameter, TypeError, ValueError) as error:
        reason = error.message if isinstance(error, click.BadParameter) else str(error)
        raise KeyRefusedError(place, f"is refused: {reason.rstrip('.')}") from None
    return given


def _require_option(name: str, value: Any) -> None:
    """Refuse numbers, stop strings and texts of files that no text takes, though click does.

    Bounds are click's alone: of other commands an option may have the same name.
    """
    from draftwood.sampling_params import OPTIONS

    if name == "system":
        with_files(value)
    option = OPTIONS.get(name)
    if option is None:
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, float) and not isfinite(each):
                raise ValueError(f"it takes a finite number, got {each}")
        return
    holds = option.holds or isfinite
    is_odd = option.kind == "number" and not (isfinite(value) and holds(value))
    if option.kind == "stops":
        option.require(name, list(value))
    elif is_odd or option.kind in ("schema", "grammar"):
        option.require(name, value)


def _hint(name: str, names: Iterable[str]) -> str:
    """The nearest of the known names, or all of them where none is near."""
    known = sorted(names)
    near = difflib.get_close_matches(name, known, 1)
    told = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f" ({told})" if known else ""
