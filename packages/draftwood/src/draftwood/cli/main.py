"""`draftwood`: commands, and the translation of errors into lines and exit codes."""

import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli.configuration import WITHOUT, at_fault, defaults
from draftwood.optional import entry_points, install_command
from draftwood.version import __version__

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# A command's module is imported when the command is used, and imports torch and everything that
# needs it inside its functions, so that help answers at once.

BAD_INPUT, INTERRUPTED, BUG = 2, 130, 1
# what the library raises for input it cannot take
EXPECTED = (ValueError, TypeError, OSError, ImportError)


COMMANDS = {
    "generate": "Write a text for a prompt.",
    "chat": "Talk with a model.",
    "embed": "Turn texts into vectors.",
    "methods": "List the methods: what they need, do and gain.",
    "fetch": "Fetch weights, so that later commands find them.",
    "compare": "Compare methods: speed, acceptance, same text or not.",
    "check": "Prove that the methods leave the text alone.",
    "tune": "Measure what trees cost on this machine, and what methods gain.",
    "datastore": "Sort texts of your own that drafts are copied from.",
    "demo": "See one text written twice, plainly and with draft trees.",
    "models": "List, pull and remove models.",
    "config": "Keep defaults of options in a file.",
    "completion": "Print a script that completes words in a shell.",
}
"""Commands of the core, each in the module of its name, and what the list of commands says."""
FAULTS = "of_the_file"
"""Attribute of errors: what to take out of the file of defaults."""
OWN_FILE = re.compile(r"[\\/]draftwood(_[a-z]+)?[\\/]")
"""Part of the path of every module of draftwood's packages."""
COMMANDS_OF_PACKAGES = "draftwood.commands"
"""Entry points that name commands: click's, one each."""
HOMES = {
    "collaborate": ("draftwood-choices", "Let two models write one text."),
    "draw": ("draftwood-images", "Draw pictures of a name."),
    "inspect": ("draftwood-train", "Tell how much hidden states know of the tokens to come."),
    "serve": ("draftwood-serve", "Serve a model by OpenAI's API."),
    "bench": (
        "draftwood-bench",
        "Measure methods by a protocol, with proof that the text is the same.",
    ),
    "plan": ("draftwood-bench", "Say which drafts pay on a machine, and by how much."),
    "report": (
        "draftwood-bench",
        "One page with figures, tables and draft trees of benchmark runs.",
    ),
    "solve": ("draftwood-choices", "Search for an answer that a checker passes."),
    "train": ("draftwood-train", "Make training data, and train drafters on them."),
}
"""Commands that packages of draftwood add: the package, and what the list of commands says."""
LONGEST_HELP = 80
"""Characters of what the list of commands says of one."""


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

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error that names a default of the file says so."""
        try:
            return super().invoke(ctx)
        except (click.UsageError, *EXPECTED) as error:
            with suppress(ValueError, OSError):  # of a broken file, which is this error itself
                vars(error)[FAULTS] = [*at_fault(ctx, str(error))]
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*COMMANDS, *_commands_of_packages()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            found = getattr(import_module(f"draftwood.cli.{cmd_name}"), cmd_name)
            found.short_help = COMMANDS[cmd_name]  # for completion in shells
            return found
        if cmd_name not in {*_commands_of_packages(), *HOMES}:
            return None
        if cmd_name not in _commands_of_packages():
            package, _ = HOMES[cmd_name]
            raise click.ClickException(
                f"'draftwood {cmd_name}' comes with the package {package};"
                f" install it: {install_command(package)}"
            )
        return _commands_of_packages()[cmd_name].load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; none of draftwood's own is imported for it."""
        known = COMMANDS | {name: told for name, (_, told) in HOMES.items()}
        rows = [
            (name, known.get(name) or self._told(ctx, name)) for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _told(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        return command.get_short_help_str(LONGEST_HELP) if command else ""


@cache
def _commands_of_packages() -> "dict[str, EntryPoint]":
    return {entry.name: entry for entry in entry_points(COMMANDS_OF_PACKAGES)}


def _wants_traceback(arguments: list[str]) -> bool:
    return arguments[:1] == ["--debug"]


def _never_fail_to_print() -> None:
    """Print a question mark for each character that the terminal cannot show, and nothing where a
    stream is closed, which then is an empty one.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
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
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return BAD_INPUT
    faults = "".join(f" ({each})" for each in vars(error).get(FAULTS, ()))
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "draftwood"
        said = _line(error.format_message()).rstrip(".")
        _complain(f"error: {said}{faults} (see '{path} --help')")
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
        _complain(f"error: {_line(str(error)) or type(error).__name__}{faults}")
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


if __name__ == "__main__":
    main()
