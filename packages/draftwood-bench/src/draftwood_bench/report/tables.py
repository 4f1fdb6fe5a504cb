"""Tables of a run's results: for the terminal, and in Markdown for pages."""

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from statistics import median

from draftwood_bench.records.files import Record, RunInfo
from draftwood_bench.records.statistics import (
    Estimate,
    Summary,
    block_efficiency,
    passes,
    summaries,
    throughput,
)
from draftwood_bench.report.best_shapes import best_shape, held_out
from draftwood_bench.report.figure_tables import FIGURE_TABLES
from draftwood_bench.report.orderings import seconds
from draftwood_bench.report.scores import quality_table
from draftwood_bench.report.table import Table, labelled, marked, number, of_passes, short


def tables(records: Sequence[Record], run: RunInfo) -> list[Table]:
    """The tables that suit a run's protocol."""
    return [marked(table, run) for table in _tables(records, run)]


def _tables(records: Sequence[Record], run: RunInfo) -> list[Table]:
    if run.protocol in FIGURE_TABLES:
        return FIGURE_TABLES[run.protocol](records)
    if run.protocol == "rsd":
        return rsd_tables(records, run)
    if run.protocol == "load":
        return [load_table(records, run, temperature) for temperature in temperatures(records)]
    found = []
    for temperature in temperatures(records):
        found += [speed_table(records, run, temperature), identity_table(records, run, temperature)]
    categories = {record.category for record in records}
    if len(categories) > 1:
        found += [
            category_table(records, run, temperature) for temperature in temperatures(records)
        ]
    return found


def temperatures(records: Sequence[Record]) -> list[float]:
    return sorted({record.temperature for record in records})


def speed_table(records: Sequence[Record], run: RunInfo, temperature: float) -> Table:
    """One row per configuration: speed, alone and beside plain decoding, and what it drafts."""
    head = (
        "method",
        "prompts",
        "tokens/s",
        "end to end",
        "speed-up",
        "end to end",
        "in total",
        "tokens/pass",
        "drafted/pass",
    )
    found = summaries([record for record in records if record.temperature == temperature], run)
    rows = tuple(
        (
            name_of(each),
            str(each.prompts),
            number(each.tokens_per_second, 1),
            number(each.end_to_end, 1),
            speed_up(each, each.speed_up),
            speed_up(each, each.speed_up_end_to_end),
            speed_up(each, each.total_speed_up, whole=False),
            tokens_per_run(each),
            of_passes(number(each.guesses_per_run, 1), each.passes),
        )
        for each in found
    )
    return Table(f"T = {temperature:g}: speed", head, rows)


def identity_table(records: Sequence[Record], run: RunInfo, temperature: float) -> Table:
    """One row per configuration: text, distance from the possible, quality.

    It says whether the text is the model's own, and how near the figures come to what is possible.
    """
    found = summaries([record for record in records if record.temperature == temperature], run)
    scores = list(dict.fromkeys(name for each in found for name in each.quality))
    head = (
        "method",
        "same text or distribution" if temperature else "same text",
        "accepted",
        "alpha*",
        "of passes",
        "of the roofline",
        *scores,
    )
    rows = tuple(
        (
            name_of(each),
            identity(each),
            of_passes(number(each.acceptance), each.bounded_passes),
            of_passes(number(each.bound), each.bounded_passes),
            "" if each.bound is None else str(each.bounded_passes),
            "" if each.roofline is None else f"{each.roofline:.0%}",
            *(number(each.quality.get(name), 3) for name in scores),
        )
        for each in found
    )
    return Table(f"T = {temperature:g}: proof, bounds and quality", head, rows)


def category_table(records: Sequence[Record], run: RunInfo, temperature: float) -> Table:
    """Speed-up and tokens per pass by category."""
    here = [record for record in records if record.temperature == temperature]
    found = summaries(here, run, by_category=True)
    categories = list(dict.fromkeys(record.category for record in here))
    rows = []
    for cell in dict.fromkeys(each.cell for each in found):
        of_cell = {each.category: each for each in found if each.cell == cell}
        cells = []
        for category in categories:
            each = of_cell.get(category)
            shown = [] if each is None else [speed_up(each, each.speed_up, whole=False)]
            if each is not None and each.block_efficiency is not None:
                shown.append(f"({tokens_per_run(each)})")
            cells.append(" ".join(filter(None, shown)))
        rows.append((name_of(next(iter(of_cell.values()))), *cells))
    title = f"T = {temperature:g}, by category of n prompts: speed-up (tokens per pass)"
    counts = (
        len({record.prompt for record in here if record.category == each}) for each in categories
    )
    heads = (f"{each} (n = {count})" for each, count in zip(categories, counts, strict=True))
    return Table(title, ("method", *heads), tuple(rows))


def rsd_tables(records: Sequence[Record], run: RunInfo) -> list[Table]:
    """Methods down, lengths and budgets across, the best shape of each.

    Other figures of these configurations follow.
    """
    found = []
    for temperature in sorted({record.temperature for record in records}, reverse=True):
        for kind in ("length", "budget"):
            here = [r for r in records if r.temperature == temperature and r.at.startswith(kind)]
            if not here:
                continue
            where = f"T = {temperature:g}, at fixed {kind}"
            chosen = (
                ""
                if kind == "length"
                else ", best shape for these prompts; held out: chosen on the other half"
            )
            found.append(
                _best_table(f"{where}: block efficiency [95 % interval]{chosen}", here, kind)
            )
            plain = [r for r in records if r.temperature == temperature and r.method == "plain"]
            found += _other_figures(where, [*plain, *here], run, kind)
        found.append(quality_table(records, temperature))
    found.append(seconds(records))
    return [table for table in found if table.rows]


def _best_table(title: str, records: Sequence[Record], kind: str) -> Table:
    columns = _sizes(records)
    rows = []
    for method in dict.fromkeys(record.method for record in records):
        cells = []
        for column in columns:
            best = best_shape(records, method, f"{kind} {column}")
            if best is None:
                cells.append("")
                continue
            shape = "" if kind == "length" else f" {short(best[0].shape or '')}"
            other = held_out(records, method, f"{kind} {column}")
            beside = "" if other is None else f"; held out {other.value:.2f}"
            told = f"{block_efficiency(best)}{shape}{beside}"
            cells.append(of_passes(told, passes(best)))
        rows.append((method, *cells))
    return Table(
        title, ("method", *(f"{kind} {column}" for column in columns)), tuple(_in_order(rows))
    )


def _other_figures(
    where: str, records: Sequence[Record], run: RunInfo, kind: str
) -> Iterator[Table]:
    """Memory-bound speed-up, token rate and quality of the best shapes.

    They are given as far as they are known.
    """
    columns = _sizes([record for record in records if record.method != "plain"])
    known = summaries(records, run)
    best: dict[tuple[str, int], Summary] = {}
    for method in dict.fromkeys(record.method for record in records if record.method != "plain"):
        for column in columns:
            shape = best_shape(records, method, f"{kind} {column}")
            if shape is not None:
                best[method, column] = next(each for each in known if each.cell == shape[0].cell)
    figures: dict[str, Callable[[Summary], str]] = {
        "MBSU": lambda each: of_passes(number(each.mbsu), each.passes),
        "tokens per second": lambda each: number(each.tokens_per_second, 1),
        **{
            score: _score(score)
            for score in dict.fromkeys(name for each in best.values() for name in each.quality)
        },
        ACCEPTED: accepted_at_the_root,
        "distribution or same text": identity,
    }
    head = ("method", *(f"{kind} {column}" for column in columns))
    for title, figure in figures.items():
        rows = [
            (
                method,
                *(
                    figure(best[method, column]) if (method, column) in best else ""
                    for column in columns
                ),
            )
            for method in dict.fromkeys(method for method, _ in best)
        ]
        if any("".join(row[1:]) for row in rows):
            yield Table(f"{where}: {title}", head, tuple(_in_order(rows)))


def _score(name: str) -> Callable[[Summary], str]:
    return lambda each: number(each.quality.get(name), 3)


def load_table(records: Sequence[Record], run: RunInfo, temperature: float) -> Table:
    """One row per method and load.

    Tokens per second of all together, and how long single requests take.
    """
    head = (
        "method",
        "load",
        "tokens/s of all",
        "over plain",
        "seconds to first token",
        "seconds in all",
        "95 % within",
    )
    head += ("tokens/pass", *(() if temperature else ("same text",)))
    here = [record for record in records if record.temperature == temperature]
    rows = []
    for each in summaries(here, run):
        group = [record for record in here if record.cell == each.cell and record.load]
        waits = [
            record.load["first_token"] - record.load["arrived"] for record in group if record.load
        ]
        ends = sorted(record.seconds_end_to_end or 0.0 for record in group)
        slow = ends[ceil(95 * len(ends) / 100) - 1]
        efficiency = tokens_per_run(each)
        gain = "texts differ" if each.failures else number(over_plain(each, here))
        times = (number(median(waits)), number(median(ends)), number(slow))
        name = f"{each.method}{lossy(each)}"
        row = (name, each.at, number(throughput(group), 1), gain, *times, efficiency)
        rows.append(row if temperature else (*row, identity(each)))
    return Table(f"T = {temperature:g}: under load", head, tuple(rows))


def over_plain(each: Summary, records: Sequence[Record]) -> float | None:
    """Tokens per second of all requests, over those of plain decoding under the same load.

    None without it.
    """
    at = [
        record
        for record in records
        if (record.at, record.temperature) == (each.at, each.temperature)
    ]
    mine, plain = (
        throughput([r for r in at if r.method == method]) for method in (each.method, "plain")
    )
    return mine / plain if mine and plain else None


def identity(each: Summary) -> str:
    """Evidence that the text is the model's own."""
    if each.same is not None:
        return f"{each.same}/{each.compared}" + (f", {each.ties} ties" if each.ties else "")
    return "" if each.law is None else f"p = {each.law:.2g}"


def tokens_per_run(each: Summary) -> str:
    """Block efficiency, where it comes from enough passes."""
    known = each.block_efficiency
    return of_passes(number(known.value if known else None), each.passes)


ACCEPTED = "accepted at the root / alpha* (passes)"


def accepted_at_the_root(each: Summary) -> str:
    """The share of passes that accepted a draft token, the greatest possible, and of how many."""
    if each.bound is None:
        return ""
    shares = of_passes(f"{number(each.acceptance)} / {each.bound:.2f}", each.bounded_passes)
    return f"{shares} ({each.bounded_passes})"


def name_of(each: Summary) -> str:
    """A configuration in the table of its run."""
    if each.method.startswith("peer:"):
        return f"{each.method.removeprefix('peer:')}, {each.at}"
    shape = "" if each.shape is None or each.at == "default" else f": {labelled(each.shape)}"
    where = "" if each.at == "default" else f", {each.at}"
    return f"{each.method}{where}{shape}{lossy(each)}"


def lossy(each: Summary) -> str:
    """A mark behind the name of a configuration that changes what the model says."""
    return "" if each.lossless else " (lossy)"


def speed_up(each: Summary, estimate: Estimate | None, whole: bool = True) -> str:
    """A ratio, or why there is none."""
    if each.failures and not each.method.startswith("peer:"):
        return "texts differ"
    if estimate is None:
        return "1" if each.method == "plain" else ""
    return str(estimate) if whole else f"{estimate.value:.2f}"


def _sizes(records: Sequence[Record]) -> list[int]:
    return sorted({int(record.at.split()[1]) for record in records})


def _in_order(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The rows as papers have them: chains first, then trees, then other rules on them."""
    known = ["speculative", "block", "spectr", "specinfer", "rsd-c", "rsd-s"]
    return sorted(rows, key=lambda row: known.index(row[0]) if row[0] in known else len(known))
