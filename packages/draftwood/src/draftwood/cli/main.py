"""`draftwood`: commands, and the translation of errors into lines and exit codes."""

import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli.chat import chat
from draftwood.cli.check import check
from draftwood.cli.compare import compare
from draftwood.cli.completion import completion
from draftwood.cli.config import config
from draftwood.cli.configuration import WITHOUT, defaults
from draftwood.cli.datastore import datastore
from draftwood.cli.demo import demo
from draftwood.cli.fetch import fetch
from draftwood.cli.generate import generate
from draftwood.cli.methods import methods
from draftwood.cli.models import models
from draftwood.cli.tune import tune
from draftwood.optional import entry_points
from draftwood.version import __version__

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Command modules import torch and everything that needs it inside their functions, so that help
# answers at once.

BAD_INPUT, INTERRUPTED, BUG = 2, 130, 1
# what the library raises for input it cannot take
EXPECTED = (ValueError, TypeError, OSError, ImportError)


OWN_FILE = re.compile(r"[\\/]draftwood(_[a-z]+)?[\\/]")
"""Part of the path of every module of draftwood's packages."""
COMMANDS_OF_PACKAGES = "draftwood.commands"
"""Entry points that name commands: click's, one each."""
HOMES = {
    "serve": "draftwood-serve",
    "bench": "draftwood-bench",
    "plan": "draftwood-bench",
    "report": "draftwood-bench",
    "train": "draftwood-train",
}
"""Packages of draftwood that add commands."""


class ErrorPolicy(click.Group):
    """Print one clear line for an error that a user can fix, a traceback only with ``--debug``.

    The exit code after Ctrl-C is 130.
    """

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        _never_fail_to_print()
        arguments = list(sys.argv[1:] if args is None else args)
        try:
            with _warnings_in_one_line():
                extra.setdefault("obj", arguments)  # for those that start themselves again
                outcome = super().main(
                    arguments, prog_name or "draftwood", standalone_mode=False, **extra
                )
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt) as error:
            if _wants_traceback(arguments) and not isinstance(
                error, click.ClickException | click.Abort
            ):
                raise
            sys.exit(_explain(error))
        sys.exit(outcome if isinstance(outcome, int) else 0)


class Commands(ErrorPolicy):
    """Commands of the core and of installed packages, loaded when used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_commands_of_packages()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in {*_commands_of_packages(), *HOMES}:
            return own
        if cmd_name not in _commands_of_packages():
            raise click.ClickException(
                f"'draftwood {cmd_name}' comes with the package {HOMES[cmd_name]};"
                f" install it: pip install {HOMES[cmd_name]}"
            )
        return _commands_of_packages()[cmd_name].load()


@cache
def _commands_of_packages() -> "dict[str, EntryPoint]":
    return {entry.name: entry for entry in entry_points(COMMANDS_OF_PACKAGES)}


def _wants_traceback(arguments: list[str]) -> bool:
    return arguments[:1] == ["--debug"]


def _never_fail_to_print() -> None:
    """Print a question mark for each character that the terminal cannot show."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Show warnings of draftwood itself without the line of code that gave them."""
    show = warnings.showwarning

    def say(
        message: Warning | str, category: type[Warning], filename: str, *place: Any, **options: Any
    ) -> None:
        if category.__module__.startswith("draftwood") or OWN_FILE.search(filename):
            _complain(f"warning: {_line(str(message))}")
        else:
            show(message, category, filename, *place, **options)

    with warnings.catch_warnings():
        warnings.showwarning = say
        yield


def _explain(error: BaseException) -> int:
    """Print the error in one line; return the exit code."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        _complain("stopped")
        return INTERRUPTED
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "draftwood"
        _complain(f"error: {_line(error.format_message()).rstrip('.')} (see '{path} --help')")
        return BAD_INPUT
    if isinstance(error, click.ClickException):
        _complain(f"error: {_line(error.format_message())}")
        return BAD_INPUT
    if isinstance(error, BrokenPipeError):
        _drop_output()
        return BUG  # as other filters do when the reader has left
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        reason = _line(str(error)) if isinstance(error, MemoryError) else ""
        cure = "out of memory; try a smaller model, a shorter prompt or --dtype bfloat16"
        _complain(f"error: {reason or cure}")
        return BAD_INPUT
    if isinstance(error, EXPECTED):
        _complain(f"error: {_line(str(error)) or type(error).__name__}")
        return BAD_INPUT
    _complain(
        f"error: this is a bug in draftwood: {type(error).__name__}: {_line(str(error))[:200]}; "
        "'draftwood --debug ...' shows where; please report it"
    )
    return BUG


def _complain(message: str) -> None:
    try:
        click.echo(f"draftwood: {message}", err=True)
    except OSError:  # nobody listens to stderr either
        _drop_output()


def _line(text: str) -> str:
    return " ".join(text.split())


def _drop_output() -> None:
    """Keep the interpreter from flushing into a closed pipe at its end."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # not a real file, as under tests
        return


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(
    __version__, "--version", prog_name="draftwood", message="%(prog)s %(version)s"
)
@click.option("--debug", is_flag=True, help="Show tracebacks. Stands before the command's name.")
@click.pass_context
def main(context: click.Context, debug: bool) -> None:
    """Faster text from a language model, the same text: lossless speculative decoding with draft
    trees.

    \b
    Examples:
      draftwood demo
      draftwood generate "Why is the sky blue?"
      draftwood compare "Count to ten." --methods auto,suffix
    """
    name = context.invoked_subcommand
    if name is None:
        click.echo(context.get_help())
    elif name not in WITHOUT:
        context.default_map = {name: defaults(context, name)}


COMMANDS = (
    *(generate, chat, methods, fetch, compare, check, tune, datastore, demo),
    *(models, config, completion),
)
for command in COMMANDS:
    main.add_command(command)

if __name__ == "__main__":
    main()
