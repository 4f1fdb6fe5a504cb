"""Plots as SVG inside a page.

Their colours are the page's, so that light and dark both suit them.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from draftwood.optional import install_command
from draftwood_bench.records.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, FAINT, PAPER = "#010203", "#040506", "#070809"  # mean colours of the page
# Okabe and Ito 2008
SERIES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
MARKS, DASHES = "osD^vPX", ("-", (0, (5, 2)), (0, (1, 1)), (0, (5, 1, 1, 1)))
HATCHES = ("", "////", "....", "xxxx")
WIDTH = 5.0  # inches, of 72 points each
LETTER, LINE = 0.075, 0.17  # of legends, in inches

Line = Sequence[tuple[float, Estimate]]


@dataclass(frozen=True)
class Style:
    """Colour, mark and dashes of one series, distinct with colours and without."""

    colour: str
    mark: str
    dashes: str | tuple


def styles(names: Sequence[str]) -> dict[str, Style]:
    """A style for each; plain decoding is ink."""
    found = {}
    for place, name in enumerate(name for name in names if name != "plain"):
        turn = place // len(SERIES)
        style = Style(
            SERIES[place % len(SERIES)],
            MARKS[(place + turn) % len(MARKS)],
            DASHES[place % len(DASHES)],
        )
        found[name] = style
    return {**found, "plain": Style(INK, "o", "-")}


def by_category(rows: Mapping[str, Mapping[str, Estimate]], style: Mapping[str, Style]) -> str:
    """Speed-up with its interval: one group of marks per category, one mark per method."""
    categories = list(dict.fromkeys(category for values in rows.values() for category in values))
    pitch = 0.8 / max(1, len(rows))
    with _plot(
        0.9 + len(categories) * max(0.3, 0.115 * len(rows)), "speed-up over plain decoding, times"
    ) as plot:
        for series, (name, values) in enumerate(rows.items()):
            places = [
                categories.index(category) + (series + 0.5) * pitch - 0.4 for category in values
            ]
            known = list(values.values())
            _errors(
                plot.axes,
                style[name],
                name,
                x=[e.value for e in known],
                y=places,
                xerr=_reach(known),
            )
        for place in range(1, len(categories)):
            plot.axes.axhline(place - 0.5, color=FAINT, linewidth=0.6)
        plot.axes.set_yticks(range(len(categories)), categories)
        plot.axes.tick_params(axis="y", length=0)
        plot.axes.set_ylim(len(categories) - 0.5, -0.5)
        plot.axes.axvline(1, color=INK, linewidth=0.9)
    return plot.drawing


def against(lines: Mapping[str, Line], style: Mapping[str, Style], below: str, aside: str) -> str:
    """Estimates with their intervals against a number, one line per method.

    They are shifted a little where they would hide each other.
    """
    places = sorted({x for line in lines.values() for x, _ in line})
    shift = (places[-1] - places[0]) * 0.006
    with _plot(3.2, below, aside) as plot:
        for series, (name, line) in enumerate(lines.items()):
            moved = [x + shift * (series - (len(lines) - 1) / 2) for x, _ in line]
            _line(plot.axes, style[name], name, moved, [estimate for _, estimate in line])
        plot.axes.set_xticks(places, [f"{x:g}" for x in places])
    return plot.drawing


def trades(
    curves: Mapping[str, Sequence[tuple[float, Estimate]]],
    style: Mapping[str, Style],
    below: str,
    aside: str,
) -> str:
    """Estimates with their intervals against what they cost, one curve per method."""
    with _plot(3.2, below, aside) as plot:
        for name, points in curves.items():
            ordered = sorted(points, key=lambda each: each[0])
            spent, known = [cost for cost, _ in ordered], [each for _, each in ordered]
            _line(plot.axes, style[name], name, spent, known)
        plot.axes.set_xlim(left=0)
    return plot.drawing


def costs(
    nodes: Sequence[int],
    ratios: Sequence[float],
    gains: Mapping[str, tuple[float, Estimate]],
    style: Mapping[str, Style],
) -> str:
    """Plot the cost of a pass over n nodes, relative to a pass over one.

    Beside it, what methods yield at the nodes they use.
    """
    with _plot(3.2, "nodes of a pass (draft tokens + 1)", "times a pass of one node") as plot:
        plot.axes.plot(
            nodes,
            ratios,
            color=INK,
            marker="o",
            markersize=3,
            linewidth=1.5,
            label="cost T(n)/T(1)",
        )
        for name, (count, gain) in gains.items():
            _errors(plot.axes, style[name], name, x=[count], y=[gain.value], yerr=_reach([gain]))
        plot.axes.set_xscale("log", base=2)
        told = list[int]()  # a third apart, so that they do not overlap
        for count in nodes:
            if not told or 3 * count >= 4 * told[-1]:
                told.append(count)
        plot.axes.set_xticks(told, [str(count) for count in told], minor=False)
        plot.axes.set_xticks([], minor=True)
        plot.axes.set_ylim(bottom=0)
    return plot.drawing


def phases(bars: Mapping[str, Mapping[str, float]]) -> str:
    """Milliseconds per token, stacked by phase: one bar per method."""
    names = list(dict.fromkeys(phase for bar in bars.values() for phase in bar))
    with _plot(0.9 + 0.34 * len(bars), "milliseconds per token") as plot:
        left = [0.0] * len(bars)
        for phase, colour, hatch in zip(names, SERIES, HATCHES, strict=False):
            widths = [bar.get(phase, 0.0) for bar in bars.values()]
            look: dict[str, Any] = {
                "color": colour,
                "hatch": hatch,
                "edgecolor": PAPER,
                "linewidth": 0.8,
                "label": phase,
            }
            plot.axes.barh(range(len(bars)), widths, left=left, height=0.66, **look)
            left = [before + width for before, width in zip(left, widths, strict=True)]
        for place, total in enumerate(left):
            plot.axes.text(total, place, f" {total:.1f}", va="center", color=INK)
        plot.axes.set_yticks(range(len(bars)), list(bars))
        plot.axes.tick_params(axis="y", length=0)
        plot.axes.set_ylim(len(bars) - 0.5, -0.5)
        plot.axes.set_xlim(0, max(left) * 1.1)
    return plot.drawing


def _errors(
    axes: "Axes", look: Style, name: str, line: str | tuple = "none", **places: Any
) -> None:
    """Marks with their intervals, joined by a line where one is named."""
    drawn: dict[str, Any] = {
        "color": look.colour,
        "marker": look.mark,
        "linestyle": line,
        "label": name,
    }
    axes.errorbar(**places, **drawn, markersize=4.5, linewidth=1.3, elinewidth=1, capsize=2)


def _line(
    axes: "Axes", look: Style, name: str, x: Sequence[float], known: Sequence[Estimate]
) -> None:
    """Marks with their intervals, joined by the series' own line."""
    y = [each.value for each in known]
    _errors(axes, look, name, look.dashes, x=x, y=y, yerr=_reach(known))


def _reach(known: Sequence[Estimate]) -> list[list[float]]:
    """Distances of intervals' ends below and above their values; 0 where there is no bound."""
    # rounding may turn the sign of nothing
    reach = [(max(0.0, each.value - each.low), max(0.0, each.high - each.value)) for each in known]
    return [[end if isfinite(end) else 0.0 for end in ends] for ends in zip(*reach, strict=True)]


class _Plot:
    """Axes to draw on, and then their drawing."""

    def __init__(self, axes: "Axes") -> None:
        self.axes = axes
        self.drawing = ""


@contextmanager
def _plot(height: float, below: str, aside: str = "") -> Iterator[_Plot]:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        cure = install_command("draftwood-bench")
        raise ImportError(f"figures need matplotlib: {cure}") from None
    look: dict[Any, Any] = {
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), INK
        ),
        **{
            "svg.fonttype": "none",
            "svg.hashsalt": "draftwood",
            "font.size": 9,
            "grid.color": FAINT,
        },
        **{
            "axes.spines.top": False,
            "axes.spines.right": False,
            "hatch.linewidth": 0.8,
            "legend.frameon": False,
        },
        **{"text.parse_math": False, "font.family": "sans-serif"},
    }
    with matplotlib.rc_context(look):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        plot = _Plot(figure.add_subplot())
        plot.axes.set_axisbelow(True)
        plot.axes.grid(axis="y" if aside else "x", linewidth=0.6)
        yield plot
        plot.axes.set_xlabel(below)
        plot.axes.set_ylabel(aside)
        handles, labels = plot.axes.get_legend_handles_labels()
        if len(labels) > 1:
            columns = max(1, min(3, int(WIDTH / (0.5 + LETTER * max(map(len, labels))))))
            figure.set_figheight(height + LINE * max(0, -(-len(labels) // columns) - 3))
            where = {
                "loc": "outside upper left",
                "ncols": columns,
                "columnspacing": 1.2,
                "handletextpad": 0.4,
            }
            figure.legend(handles, labels, **where)
        buffer = io.StringIO()
        figure.savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
        plot.drawing = _inlined(buffer.getvalue())


def _inlined(svg: str) -> str:
    """The SVG without prologue, metadata, size and fonts of its own, in the page's colours."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(
        r'(<svg[^>]*?) width="[^"]*"',
        r"\1",
        re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1),
        count=1,
    )
    svg = re.sub(r"(font: [^;\"]*?[\d.]+px) [^;\"]*", r"\1 var(--font)", svg)
    for name, colour in zip(("ink", "faint", "paper"), (INK, FAINT, PAPER), strict=True):
        svg = svg.replace(colour, f"var(--{name})")
    for place, colour in enumerate(SERIES):
        svg = svg.replace(colour, f"var(--series-{place})")
    return svg.strip()
