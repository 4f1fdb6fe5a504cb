"""A command run on a terminal of its own, and what was seen of it as a moving picture."""

import os
import pty
import struct
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fcntl import ioctl
from html import escape
from itertools import groupby
from subprocess import Popen

LONGEST_WAIT = 1.2  # seconds without a change are cut to this
TYPING, HOLD = 0.05, 7.0  # seconds for a letter of the command, and at the end
SETTLED = 0.08  # seconds between two pictures at least
FONT, LINE, LETTER = 14, 19, 8.43

PAPER, INK = "#14171a", "#e7e6e2"
COLOURS = {"green": "#5bd3a6", "cyan": "#82bbf6", "brown": "#f2a96c", "red": "#ff9a90"}
COLOURS |= {"blue": "#82bbf6", "magenta": "#d0a6f0", "black": "#a5acb5"}


@dataclass(frozen=True)
class Run:
    """Letters of one style.

    Attributes:
        column: of the first.
        style: a class of the picture's style sheet; empty for plain text.
    """

    column: int
    text: str
    style: str


Row = tuple[Run, ...]


@dataclass(frozen=True)
class Frame:
    """Content of the screen from a time on, in seconds."""

    at: float
    rows: tuple[Row, ...]


def record(command: Sequence[str], columns: int, rows: int) -> list[Frame]:
    """Run a command on a terminal; what it showed, and when.

    Raises:
        RuntimeError: where the command fails.
    """
    import pyte

    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": ""}
    environment |= {"COLUMNS": str(columns), "LINES": str(rows)}
    frames: list[Frame] = []
    with Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        begun = time.perf_counter()
        while True:
            try:
                read = os.read(ours, 65536)
            except OSError:  # the command has ended
                break
            if not read:
                break
            stream.feed(read)
            seen = Frame(time.perf_counter() - begun, _rows(screen))
            if frames and seen.at - frames[-1].at < SETTLED:
                frames[-1] = Frame(frames[-1].at, seen.rows)
            elif not frames or seen.rows != frames[-1].rows:
                frames.append(seen)
    os.close(ours)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return frames


def _rows(screen: object) -> tuple[Row, ...]:
    buffer, columns = screen.buffer, screen.columns  # type: ignore[attr-defined]
    found = []
    for number in range(screen.lines):  # type: ignore[attr-defined]
        cells = [buffer[number][column] for column in range(columns)]
        runs, column = [], 0
        for style, same in groupby(cells, key=_style):
            text = "".join(cell.data for cell in same)
            if text.strip():
                runs.append(Run(column + len(text) - len(text.lstrip()), text.strip(), style))
            column += len(text)
        found.append(tuple(runs))
    while found and not found[-1]:
        found.pop()
    return tuple(found)


def _style(cell: object) -> str:
    colour, bold = cell.fg, cell.bold  # type: ignore[attr-defined]
    # a terminal's dim letters have no name of their own in the emulator: rich draws bars in greys
    name = colour if colour in COLOURS else "" if colour == "default" else "black"
    return " ".join(filter(None, (name, "bold" if bold else "")))


def as_svg(typed: str, frames: Sequence[Frame], columns: int) -> str:
    """A picture that shows a command being typed, then each row for as long as it was seen.

    Waits are cut. Who wants no motion sees the last frame.
    """
    times, now, before = [], 0.6 + TYPING * len(typed), 0.0
    for frame in frames:
        now += min(frame.at - before, LONGEST_WAIT)
        before = frame.at
        times.append(now)
    whole = now + HOLD
    height = 2 + max(len(frame.rows) for frame in frames)
    body = [_typed(typed, whole)]
    for row in range(height):
        rows = [frame.rows[row] if row < len(frame.rows) else () for frame in frames]
        body += _spans(row, list(zip(times, rows, strict=True)), whole)
    width, tall = round(columns * LETTER) + 40, (height + 1) * LINE + 30
    keyframes = "".join(each.rule for each in body)
    drawn = "".join(each.drawing for each in body)
    classes = "".join(f".{name}{{fill:{colour}}}" for name, colour in COLOURS.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {tall}" role="img"'
        f' aria-label="A session of {escape(typed)}: one text written twice, and a draft tree">'
        f"<style>text{{font:{FONT}px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        f"fill:{INK};white-space:pre}}{classes}.bold{{font-weight:700}}"
        f".m{{animation-duration:{whole:.2f}s;animation-iteration-count:infinite;"
        f"animation-timing-function:step-end}}.gone{{opacity:0}}{keyframes}"
        "@media(prefers-reduced-motion:reduce){.m{animation:none}}</style>"
        f'<rect width="{width}" height="{tall}" rx="10" fill="{PAPER}"/>{drawn}</svg>\n'
    )


@dataclass(frozen=True)
class Moving:
    """Part of the picture, with the rule that shows and hides it."""

    drawing: str
    rule: str = ""


def _typed(typed: str, whole: float) -> Moving:
    letters, rules = "", ""
    for place, letter in enumerate(typed):
        share = 100 * (0.4 + TYPING * place) / whole
        name = f"t{place}"
        rules += f"@keyframes {name}{{0%{{fill-opacity:0}}{share:.2f}%{{fill-opacity:1}}}}"
        rules += f".{name}{{animation-name:{name}}}"
        letters += f'<tspan class="m {name}">{escape(letter)}</tspan>'
    sign = '<tspan class="green">$ </tspan>'
    return Moving(f'<text x="20" y="{LINE + 12}" class="bold">{sign}{letters}</text>', rules)


def _spans(number: int, seen: Sequence[tuple[float, Row]], whole: float) -> list[Moving]:
    """Contents of one row, each for its time; the last one stays."""
    found = []
    y = (number + 2) * LINE + 12
    changes = [next(group) for _, group in groupby(seen, key=lambda each: each[1])]
    for place, (begin, row) in enumerate(changes):
        if not row:
            continue
        last = place == len(changes) - 1
        end = whole if last else changes[place + 1][0]
        name = f"r{number}-{place}"
        steps = f"0%{{opacity:0}}{100 * begin / whole:.2f}%{{opacity:1}}"
        steps += "" if last else f"{100 * end / whole:.2f}%{{opacity:0}}"
        rule = f"@keyframes {name}{{{steps}}}.{name}{{animation-name:{name}}}"
        texts = "".join(_text(run, y) for run in row)
        shown = "m" if last else "m gone"
        found.append(Moving(f'<g class="{shown} {name}">{texts}</g>', rule))
    return found


def _text(run: Run, y: int) -> str:
    style = f' class="{run.style}"' if run.style else ""
    x = 20 + run.column * LETTER
    # so that columns stand below each other whatever the font is
    length = f' textLength="{len(run.text) * LETTER:.1f}"' if len(run.text) > 1 else ""
    return f'<text x="{x:.1f}" y="{y}"{length}{style}>{escape(run.text)}</text>'
