"""Tables of experiments, cut to the rows and columns that answer their question.

Every record stays in ``benchmarks/results``; `python -m benchmarks.self_speculation show NAME` and
the like print all of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.common.json_lines import read
from benchmarks.pages.runs import MISSING
from benchmarks.self_speculation import experiments
from benchmarks.training import drafters, frames, scaling, speed
from draftwood_bench.report.table import Table

Row = Mapping[str, str]


@dataclass(frozen=True)
class Choice:
    """A table to show.

    Attributes:
        title: how its title begins.
        columns: to show, in this order; those that a row lacks stay empty.
        rows: tells whether a row is shown.
        heading: to show where the whole table's title does not fit.
    """

    title: str
    columns: tuple[str, ...]
    rows: Callable[[Row], bool] = bool
    heading: str = ""

    def of(self, rows: Sequence[Row]) -> Table:
        kept = [row for row in rows if self.rows(row)]
        cells = tuple(tuple(row.get(name, "") for name in self.columns) for row in kept)
        return Table("", self.columns, cells)


def has(column: str, *values: str) -> Callable[[Row], bool]:
    """Keep rows whose cell is, or begins with, one of these."""
    return lambda row: row.get(column, "").startswith(values)


SHOWN: Mapping[str, tuple[Choice, ...]] = {
    "shadow": (
        Choice(
            "Four",
            ("target in bfloat16", "drafts", "acceptance", "tokens per pass"),
            lambda row: row["drafts"] == "shadow" or row["target in bfloat16"].startswith("smol"),
        ),
    ),
    "exits": (
        Choice(
            "Acceptance",
            ("exit after layer", "no map", "map of shuffled pairs", "fitted map"),
            has("exit after layer", "15", "25"),
            "Acceptance of one draft token from an early exit, greedy",
        ),
        Choice(
            "Tokens for as many layers",
            ("drafts", "drafting 1"),
            has("drafts", "best", "DEL over plain"),
        ),
    ),
    "layers": (
        Choice(
            "A third",
            ("left out", "acceptance", "over the best random set"),
            lambda row: not row["left out"].endswith(("on these prompts", "halves", "together")),
        ),
    ),
    "memory": (
        Choice(
            "Tokens per pass",
            ("category", "auto", "memory", "memory adds", "shuffled adds"),
            has("category", "math", "translation", "rag", "all"),
        ),
        Choice(
            "A file",
            ("after an edit", "drafts", "tokens per pass", "speed over plain"),
            has("after an edit", "the same"),
        ),
    ),
    "merged": (
        Choice(
            "Stories: speed by price",
            ("length", "speed", "over the best fixed length, likewise"),
            has("length", "always 3", "until by"),
        ),
        Choice(
            "Six draft tokens",
            ("texts", "drafts", "tokens per pass", "merged over it"),
            lambda row: "two places" not in row["drafts"],
        ),
    ),
    "windowed": (
        Choice(
            "Behind",
            ("drafts", "tokens per pass", "speed over plain"),
            has("texts", "free"),
        ),
    ),
    "hybrids": (
        Choice(
            "A hybrid",
            ("T", "drafts", "tokens per pass", "over the chain", "speed over plain"),
            lambda row: (
                row["drafts"].startswith(("chain of 3", "chain of 6", "rsd-s, 3 beams"))
                or (row["T"] == "0" and row["drafts"].startswith("best first, 6 nodes, 3"))
            ),
        ),
    ),
}
DRAFTERS = Choice(
    "",
    ("drafter", "tokens", "8 nodes, T = 0", "8 nodes, T = 1", "beside the first, 8 nodes, T = 0"),
)
JUDGED = Choice("", ("frames", "beside", "8 nodes", "63 nodes"))
PAIRS = Choice("", ("drafter", "beside", "8 nodes, T = 0"))
SCALING = Choice(
    "",
    ("ten times the", "accepted", "adds"),
    lambda row: row["ten times the"].startswith("data") or row["ten times the"].endswith("T = 0"),
)


def of_experiment(name: str) -> str:
    """Markdown of an experiment's tables, each below its title."""
    found = list(experiments.tables(name))
    shown = [
        titled(choice.heading or title, choice.of(rows))
        for choice in SHOWN[name]
        for title, rows in found
        if title.startswith(choice.title)
    ]
    return "\n\n".join(shown) or MISSING


MEASURED_ANEW = "ctc", "fspad", "growth"
"""Questions and an arm that ``frames`` and ``scaling`` ask at equal data, with right controls."""
READ_ELSEWHERE = (
    *("linear, ctc, paper", "linear, ctc, prefix"),
    *(f"{head}, {how}" for head in ("linear, ctc", "prefix+lk") for how in ("released", "raw")),
)
"""Readings of frames that stand in the table of held-out text, or in `frames show`, alone."""


def of_drafters() -> str:
    """Trained drafters at equal data, by question, then beside each other."""
    if not read(drafters.RECORDS):
        return MISSING
    return "\n\n".join(_of_drafters())


def _of_drafters() -> Iterator[str]:
    rows: list[Row] = []
    for question, found in drafters.tables():
        shown = [each for each in found if each["drafter"] not in MEASURED_ANEW]
        if question not in MEASURED_ANEW:
            rows += [{"drafter": f"**{drafters.TITLES[question]}**"}, *shown]
    yield DRAFTERS.of(rows).markdown()
    beside = [each for each in drafters.pairs() if not each["drafter"].startswith("ctc")]
    yield titled("Beside each other", PAIRS.of(beside))
    yield titled(f"{frames.TITLE}, 8 nodes, T = 0 and 1, by tokens", _of_frames())
    held = {amount: found for amount, found in frames.judged_pairs() if amount in frames.AMOUNTS}
    if held:
        title = f"{frames.HELD_PAIRS}, {max(held) // 1000}k tokens"
        yield titled(title, JUDGED.of(held[max(held)]))
    yield titled(scaling.TITLE, SCALING.of(scaling.rows()))
    yield from _foretold()
    for title, speeds in list(speed.tables())[-1:]:
        yield titled(title, Choice("", tuple(speeds[0])).of(speeds))


def _of_frames() -> Table:
    """Arms as rows, amounts of data as columns; arms of the least data alone are left out."""
    amounts = [f"{amount // 1000}k" for amount, _ in frames.tables()]
    columns = [(f"{each}", f"{each}, beside {frames.BASE}") for each in amounts]
    rows: dict[str, dict[str, str]] = {}
    for (means, beside), (_, found) in zip(columns, frames.tables(), strict=True):
        for each in found:
            if not each["drafter"].endswith(READ_ELSEWHERE):
                row = rows.setdefault(each["drafter"], {"drafter": each["drafter"]})
                cells = [each[f"8 nodes, T = {temperature}"] for temperature in (0, 1)]
                row[means] = "/".join(cell.partition(" ")[0] for cell in cells)
                row[beside] = each[f"beside {frames.BASE}"]
    names = ("drafter", *(name for pair in columns for name in pair))
    kept = [row for row in rows.values() if row.keys() & {means for means, _ in columns[1:]}]
    return Choice("", names).of(kept or list(rows.values()))


def _foretold() -> Iterator[str]:
    """A sentence on the largest run of the scaling laws, once it is foretold."""
    rows = scaling.foretold_rows()
    told = [f"{row['foretold']} at T = {row['T']}" for row in rows]
    if told:
        came = " and ".join(row["measured"] for row in rows if row["measured"])
        after = f"; measured: {came}" if came else ""
        yield f"Its line foretells for {scaling.LARGEST:,} tokens {', '.join(told)}{after}."


def titled(title: str, table: Table) -> str:
    return f"**{title}**\n\n{table.markdown()}"
