"""A verify-cost curve drawn in the terminal."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from draftwood.costs.curve import Curve

# of a braille character, by row and column
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
EMPTY = 0x2800
WIDTH, HEIGHT = 60, 10
"""Columns and lines of a drawing without its labels and its axis."""
LINE, AXIS = "bold cyan", "dim"


def draw_curve(curve: "Curve", encoding: str | None = "utf-8") -> "Text":
    """Milliseconds per forward pass against nodes, from 0 upwards; nodes double from mark to mark.

    Args:
        encoding: of the terminal; one without braille gets a coarser drawing.
    """
    from rich.text import Text

    lines = _plot(curve, _fine(encoding))
    top, plain = curve.seconds[-1], curve.seconds[0]
    marks = {0: top, round((HEIGHT - 1) * (1 - plain / top)): plain} if top > plain else {0: top}
    edge = max(len(_milliseconds(value)) for value in marks.values())
    upright, corner = ("│", "└") if _fine(encoding) else ("|", "+")
    text = Text()
    for row, line in enumerate(lines):
        label = _milliseconds(marks[row]) if row in marks else ""
        text.append(f"{label:>{edge}} {upright}", AXIS).append(f"{line}\n", LINE)
    text.append(f"{'':{edge}} {corner}{('─' if _fine(encoding) else '-') * WIDTH}\n", AXIS)
    return text.append(f"{'':{edge}}  {_scale(curve)}", AXIS)


def _fine(encoding: str | None) -> bool:
    try:
        chr(EMPTY).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds * 1e3:.0f} ms"


def _plot(curve: "Curve", fine: bool) -> list[str]:
    """The line alone, in characters that hold two by four dots each, or one."""
    across, down = (2, 4) if fine else (1, 1)
    columns, rows = WIDTH * across, HEIGHT * down
    cells = [[0] * WIDTH for _ in range(HEIGHT)]
    levels = [
        round((rows - 1) * (1 - _at(curve, x / (columns - 1)) / curve.seconds[-1]))
        for x in range(columns)
    ]
    for x, level in enumerate(levels):
        before = levels[x - 1] if x else level
        for y in range(level, max(level + 1, before)):  # the line stays whole where it is steep
            cells[y // down][x // across] |= DOTS[y % down][x % across]
    return [
        "".join(_character(cell, fine) for cell in line).rstrip(chr(EMPTY) + " ") for line in cells
    ]


def _character(cell: int, fine: bool) -> str:
    return chr(EMPTY + cell) if fine else "*" if cell else " "


def _at(curve: "Curve", share: float) -> float:
    """Seconds at a share of the way along the axis.

    On it numbers of nodes double at equal steps.
    """
    nodes = curve.nodes[-1] ** share
    low = min(math.floor(nodes + 1e-9), curve.nodes[-1])
    before = curve(low)
    return before + max(0.0, nodes - low) * (
        curve(low + 1) - before if low < curve.nodes[-1] else 0.0
    )


def _scale(curve: "Curve") -> str:
    """The marks below the axis."""
    last = curve.nodes[-1]
    line = [" "] * (WIDTH + 8)
    for power in range(last.bit_length()):
        nodes = 1 << power
        place = round((WIDTH - 1) * math.log(nodes, last)) if last > 1 else 0
        line[place : place + len(str(nodes))] = str(nodes)
    return "".join(line).rstrip() + " nodes"
