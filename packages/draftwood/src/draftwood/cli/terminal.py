"""Print beside the output: always on stderr, and only where someone can see it."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from draftwood.stats import Stats


def output(piped: int = 120) -> "Console":
    """Console for results. If piped, tables are at most ``piped`` characters wide."""
    return _console(sys.stdout, piped)


def notes() -> "Console":
    """Console for notes, summaries and drawings beside the text."""
    return _console(sys.stderr)


def _console(file: "TextIO", piped: int = 120) -> "Console":
    import os

    from rich.console import Console

    told = os.environ.get("COLUMNS", "")
    width, is_terminal = None, file.isatty()
    if told == "0" or not (told or is_terminal):  # 0 is of a terminal that does not know
        known = os.get_terminal_size(file.fileno()).columns if is_terminal else 0
        width = known or piped
    return Console(file=file, highlight=False, width=width)


def mark(passed: bool) -> str:
    """A mark of what passed or not, in rich's markup; a word where the output cannot show it."""
    try:
        "✓✗".encode(sys.stdout.encoding or "utf-8")
    except (LookupError, UnicodeEncodeError):
        return "[green]yes[/]" if passed else "[red]NO[/]"
    return "[green]✓[/]" if passed else "[red]✗[/]"


def ruled_table(words: "Sequence[str]" = (), numbers: "Sequence[str]" = ()) -> "Table":
    """A table with a line below its titles, none wrapped: columns of words, then of numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in words:
        table.add_column(title, no_wrap=True)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def progress() -> "Progress":
    """A progress bar on stderr that shows itself on a terminal only and leaves no trace."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=notes(),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def summary(stats: "Stats", method: str) -> str:
    """Summarise a text in one line: tokens, speed, method."""
    return (
        f"{stats.tokens} tokens, {stats.tokens_per_second:.1f} tokens/s, "
        f"{stats.block_efficiency:.2f} tokens per forward pass, {method}"
    )


def say_summary(stats: "Stats", method: str, is_cut: bool = False) -> None:
    """Print the summary, dimmed, if stderr is a terminal.

    Args:
        is_cut: whether the text ended by its length.
    """
    if sys.stderr.isatty():
        cut = "; cut, --max-new-tokens allows more" if is_cut else ""
        notes().print(f"{summary(stats, method)}{cut}", style="dim", soft_wrap=True)


def depths(stats: "Stats", shown: int = 5) -> str:
    """Shares of passes that accepted at least one, two, three ... draft tokens."""
    shares = (
        [count / stats.target_runs for count in stats.accepted_by_depth[:shown]]
        if stats.target_runs
        else []
    )
    more = " …" if len(stats.accepted_by_depth) > shown else ""
    return " ".join(f"{share:.2f}".removeprefix("0") for share in shares) + more or "-"
