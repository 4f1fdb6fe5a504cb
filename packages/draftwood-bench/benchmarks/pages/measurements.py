"""Measurements without prompts: costs of passes, formats, overhead, systems on the same file."""

from pathlib import Path
from typing import Any

from benchmarks import never_loses, starting
from benchmarks.common.json_lines import read_clean
from benchmarks.pages.runs import MISSING, all_measured, measured
from draftwood_bench.records.figures import figures
from draftwood_bench.report.table import Table
from draftwood_bench.report.tables import tables

FILE_HEAD = ("model", "system", "mode", "tokens/s", "prompt tokens/s", "texts as ours")


def whole(name: str) -> str:
    """Every table of a run, as `draftwood bench show` prints them."""
    found = measured(name)
    if found is None:
        return MISSING
    shown = tables(found.records, found.run)
    return "\n\n".join(f"{table.title}\n\n{table.markdown()}" for table in shown)


def overhead(name: str) -> str:
    """Milliseconds of a native step outside passes and drafters, a row for each method."""
    found = measured(name)
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for each in found.records if found else ():
        part, _, vocab = each.at.partition(", ")
        if part == "native" and each.stats is not None:
            row = rows.setdefault((each.method, f"{each.temperature:g}"), {})
            row[vocab] = f"{each.stats['milliseconds']:.2f}"
    columns = list(dict.fromkeys(vocab for row in rows.values() for vocab in row))
    cells = tuple((*key, *(row.get(each, "") for each in columns)) for key, row in rows.items())
    return Table("", ("method", "T", *columns), cells).markdown() if cells else MISSING


def same_file(*names: str) -> str:
    """Systems on the same GGUF file, one row each."""
    rows = [_file_row(each) for found in all_measured(*names) for each in figures(found.records)]
    return Table("", FILE_HEAD, tuple(rows)).markdown() if rows else MISSING


def _file_row(each: dict[str, Any]) -> tuple[str, ...]:
    same = each["same_texts"]
    return (
        each["model"],
        each["method"],
        each["at"],
        f"{each['tokens_per_second']:.0f}",
        f"{each['prompt_tokens_per_second']:.0f}",
        "" if same is None else f"{same}/{each['texts']}",
    )


def starts(records: Path = starting.RECORDS) -> str:
    """First tokens of new processes and their memory, beside llama.cpp's wheel."""
    rows = starting.rows(read_clean(records))
    if not rows:
        return MISSING
    return Table("", tuple(rows[0]), tuple(tuple(row.values()) for row in rows)).markdown()


def cost(name: str) -> str:
    """Milliseconds of a pass over one node, and T(n)/T(1), a row for each model and path."""
    found = measured(name)
    known = figures(found.records) if found else []
    nodes = sorted({each["nodes"] for each in known})
    groups: dict[tuple[str, str, int], dict[int, float]] = {}
    for each in known:
        key = (each["model"], each["method"], each["prompt_tokens"])
        groups.setdefault(key, {})[each["nodes"]] = each["milliseconds"]
    rows = [
        (
            *(model, path, f"{times[1]:.1f}"),
            *(f"{times[n] / times[1]:.2f}" if n in times else "" for n in nodes if n > 1),
        )
        for (model, path, _), times in groups.items()
        if 1 in times
    ]
    head = ("model", "path", "T(1), ms", *(f"T({n})/T(1)" for n in nodes if n > 1))
    return Table("", head, tuple(rows)).markdown() if rows else MISSING


def with_heads(records: Path = never_loses.RECORDS) -> str:
    """`auto` over plain decoding with a model's own head and without: greedily, at T = 1."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in never_loses.rows(read_clean(records)):
        if row["category"] == never_loses.ALL:
            place = cells.setdefault((row["model"], row["prompts"]), {})
            place[f"{row['head']}, T = {row['temperature']}"] = row["ratio"]
    columns = [f"{head}, T = {at}" for at in (0, 1) for head in ("shipped", "none")]
    rows = [(*key, *(row.get(each, "") for each in columns)) for key, row in cells.items()]
    return Table("", ("model", "prompts", *columns), tuple(rows)).markdown() if rows else MISSING
