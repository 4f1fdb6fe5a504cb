"""Print beside the output: always on stderr, and only where someone can see it."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from draftwood.stats import Stats


def output(piped: int = 120) -> "Console":
    """Console for results. If piped, tables are at most ``piped`` characters wide."""
    from rich.console import Console

    return Console(
        file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _piped_width(piped)
    )


def notes() -> "Console":
    """Console for notes, summaries and drawings beside the text."""
    from rich.console import Console

    return Console(
        file=sys.stderr, highlight=False, width=None if sys.stderr.isatty() else _piped_width()
    )


def _piped_width(width: int = 120) -> int | None:
    import os

    return None if os.environ.get("COLUMNS") else width


def progress() -> "Progress":
    """A progress bar on stderr that shows itself on a terminal only and leaves no trace."""
    from rich.console import Console
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
        console=Console(file=sys.stderr),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def summary(stats: "Stats", method: str) -> str:
    """Summarise a text in one line: tokens, speed, method."""
    return (
        f"{stats.tokens} tokens, {stats.tokens_per_second:.1f} tokens/s, "
        f"{stats.block_efficiency:.2f} tokens per forward pass, {method}"
    )


def say_summary(stats: "Stats", method: str) -> None:
    """Print the summary, dimmed, if stderr is a terminal."""
    if sys.stderr.isatty():
        notes().print(summary(stats, method), style="dim", soft_wrap=True)


def depths(stats: "Stats", shown: int = 5) -> str:
    """Shares of passes that accepted at least one, two, three ... draft tokens."""
    shares = (
        [count / stats.target_runs for count in stats.accepted_by_depth[:shown]]
        if stats.target_runs
        else []
    )
    more = " …" if len(stats.accepted_by_depth) > shown else ""
    return " ".join(f"{share:.2f}".removeprefix("0") for share in shares) + more or "-"
