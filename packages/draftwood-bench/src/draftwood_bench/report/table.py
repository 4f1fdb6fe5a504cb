"""A table of a report, and how its cells are written."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from draftwood_bench.records.files import RunInfo
from draftwood_bench.records.notes import HIDDEN
from draftwood_bench.records.statistics import FEWEST_PASSES

if TYPE_CHECKING:
    from rich.table import Table as Drawn


@dataclass(frozen=True)
class Table:
    """A title, names of columns, and rows."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The table without its title."""
        lines = [self.head, ("---",) * len(self.head), *self.rows]
        cells = ([cell.replace("|", r"\|") for cell in line] for line in lines)
        return "\n".join("| " + " | ".join(line) + " |" for line in cells)

    def rich(self) -> "Drawn":
        """The table for a terminal, without its title."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as Drawn
        from rich.text import Text

        table = Drawn(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for place, head in enumerate(self.head):
            table.add_column(Text(head), justify="right" if place else "left")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


def marked(table: Table, run: RunInfo) -> Table:
    """The table, its title with the commits that do not hold what was measured.

    Files differed from these commits.
    """
    return (
        replace(table, title=f"{table.title}, measured at {', '.join(run.dirty)}")
        if run.dirty
        else table
    )


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def of_passes(text: str, passes: int) -> str:
    """A figure of so many forward passes, hidden where they are too few to tell it."""
    return HIDDEN if text and passes < FEWEST_PASSES else text


def short(shape: str) -> str:
    """``(3,2,2)`` or ``3x7`` for a printed shape."""
    numbers = "".join(
        c if c.isdigit() else " " for c in shape.split("draw=")[0].replace("budget=None", "")
    ).split()
    if shape.startswith(("Independent", "Stoch", "Best")):
        return "x".join(numbers)
    return (
        f"({','.join(numbers)})" if shape.startswith("Widths") else shape.partition("(")[0].lower()
    )


def labelled(shape: str) -> str:
    """The same with what kind of tree it is."""
    kinds = {"Independent": "chains ", "Stochastic": "beams ", "BestFirst": "best-first "}
    kind = next((word for name, word in kinds.items() if shape.startswith(name)), "")
    draw = shape.partition("draw='")[2].partition("'")[0]
    numbers = short(shape)
    if shape.startswith("Widths") and set(numbers.strip("()").split(",")) == {"1"}:
        return f"chain of {numbers.count('1')}"
    return f"{kind}{numbers}{'' if draw in ('', 'distinct') else f' {draw}'}"
