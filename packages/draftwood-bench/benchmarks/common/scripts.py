"""Command lines of the scripts, and the tables that they print."""

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from draftwood_bench.report.table import Table


def parser_of(told: str | None) -> argparse.ArgumentParser:
    """A parser that shows a script's docstring as it is written."""
    return argparse.ArgumentParser(
        description=told, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def print_table(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Print rows in Markdown, names of columns from their keys; ends the script where nobody reads
    on.
    """
    try:
        print(_in_markdown(rows, title), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more
        sys.exit(1)


def _in_markdown(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    if not rows:
        return f"{title}: nothing is measured yet"
    head = tuple(name.replace("_", " ") for name in rows[0])
    cells = tuple(tuple(str(value) for value in row.values()) for row in rows)
    return f"{title}\n\n{Table(title, head, cells).markdown()}"


def print_tables(tables: Iterable[tuple[str, Sequence[Mapping[str, Any]]]]) -> None:
    """Print tables by their titles, an empty line behind each."""
    for title, rows in tables:
        print_table(rows, title)
        print()
