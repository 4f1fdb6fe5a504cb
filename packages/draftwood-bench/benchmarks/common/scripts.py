"""Command lines of the scripts, and the tables that they print."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from draftwood_bench.report.table import Table


def parser_of(told: str | None) -> argparse.ArgumentParser:
    """A parser that shows a script's docstring as it is written."""
    return argparse.ArgumentParser(
        description=told, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def print_table(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Print rows in Markdown, names of columns from their keys."""
    if not rows:
        print(f"{title}: nothing is measured yet")
        return
    head = tuple(name.replace("_", " ") for name in rows[0])
    cells = tuple(tuple(str(value) for value in row.values()) for row in rows)
    print(f"{title}\n\n{Table(title, head, cells).markdown()}")


def print_tables(tables: Iterable[tuple[str, Sequence[Mapping[str, Any]]]]) -> None:
    """Print tables by their titles, an empty line behind each."""
    for title, rows in tables:
        print_table(rows, title)
        print()
