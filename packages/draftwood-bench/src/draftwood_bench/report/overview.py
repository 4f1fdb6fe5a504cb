"""The first screen: what was run, and one row for each method."""

from collections.abc import Iterable, Sequence

from draftwood_bench.records.extent import unfinished
from draftwood_bench.records.files import Record, RunInfo
from draftwood_bench.records.statistics import Summary, summaries
from draftwood_bench.report.best_shapes import best_shape
from draftwood_bench.report.figure_tables import FIGURE_TABLES
from draftwood_bench.report.table import Table, marked, number, of_passes
from draftwood_bench.report.tables import (
    ACCEPTED,
    accepted_at_the_root,
    identity,
    load_table,
    name_of,
    speed_up,
)

SPEC_BENCH = "Spec-Bench stands here as its even half: the questions with even numbers."
HEAD = (
    *("method", "prompts", "tokens per pass [95 %]", "tokens/s"),
    "speed-up over plain, decoding alone [95 %]",
    *("tokens/s, end to end", "speed-up, end to end [95 %]"),
)
LAST = ("of the roofline", ACCEPTED)


def facts(run: RunInfo, records: Sequence[Record]) -> dict[str, str]:
    """Facts of a run, by name."""
    cores = f", {run.hardware['cores']} cores" if run.hardware.get("cores") else ""
    found = {
        "model": ", ".join(filter(None, [run.model, run.dtype])),
        "draft model": run.draft_model or "",
        "drafter": run.drafter or "",
        "machine": (
            f"{run.hardware['device']}{cores}, {run.threads}"
            f" thread{'s' if run.threads != 1 else ''}"
        ),
        "prompts": _prompts(run, records),
        "commit": ", ".join(
            dict.fromkeys(filter(None, [run.commit, *(each.get("commit") for each in run.resumed)]))
        ),
        "measured": run.started if run.started != "unknown" else "",
    }
    return {name: value for name, value in found.items() if value}


def _prompts(run: RunInfo, records: Sequence[Record]) -> str:
    """Describe the prompts; empty for a measurement, whose notes describe its text."""
    if run.protocol in FIGURE_TABLES:
        return ""
    prompts, answered = run.prompts, len({record.prompt for record in records})
    of = f" of {prompts['count']}" if answered < prompts["count"] else ""
    source = f"{answered}{of}, {prompts['source']}: {prompts['note'] or 'from a file'}"
    also = f". {SPEC_BENCH}" if prompts["source"] == "spec-bench" else ""
    left = unfinished(records, run)
    return f"{source}; {prompts['rule']}{also}{f'; {left}' if left else ''}"


def overview(records: Sequence[Record], run: RunInfo, temperature: float) -> Table:
    """One row per method: what it yields, and how it is known to be lossless."""
    if run.protocol == "load":
        return marked(load_table(records, run, temperature), run)
    shown = [_row(each, temperature) for each in chosen(records, run, temperature)]
    head = (*HEAD, "same text or distribution" if temperature else "same text", *LAST)
    kept = [place for place in range(len(head)) if any(row[place] for row in shown)]
    rows = tuple(tuple(row[place] for place in kept) for row in shown)
    where = (
        ", at the largest budget each was measured at, best shape for these prompts"
        if run.protocol == "rsd"
        else ""
    )
    return marked(
        Table(f"T = {temperature:g}{where}", tuple(head[place] for place in kept), rows), run
    )


def chosen(records: Sequence[Record], run: RunInfo, temperature: float) -> list[Summary]:
    """The configurations that represent their methods.

    That is all, or of fixed budgets and lengths the best shape at the largest.
    """
    here = [record for record in records if record.temperature == temperature]
    if run.protocol != "rsd":
        return summaries(here, run)
    picked = [record for record in here if record.method == "plain"]
    for method in dict.fromkeys(record.method for record in here if record.method != "plain"):
        at = max((record.at for record in here if record.method == method), key=_size)
        picked += best_shape(here, method, at) or []
    return summaries(picked, run)


def of_cell(each: Summary, records: Iterable[Record]) -> list[Record]:
    """The records that a summary sums up."""
    return [
        record
        for record in records
        if (record.cell, record.temperature) == (each.cell, each.temperature)
        and each.category in (None, record.category)
    ]


def refusal(each: Summary) -> str:
    """Why a method gets no speed-up.

    It says where its text leaves plain decoding's, and how near the two tokens were.
    """
    place = each.divergence or {}
    if "position" not in place:
        return f"none: {each.failures} texts differ"
    return (
        f"none: {each.failures} texts differ, first at token {place['position']} of"
        f" {place['prompt']}, top logits {place['margin']:.3g} apart"
    )


def is_refused(each: Summary) -> bool:
    return bool(each.failures) and not each.method.startswith("peer:")


def _row(each: Summary, temperature: float) -> tuple[str, ...]:
    efficiency = "" if each.block_efficiency is None else str(each.block_efficiency)
    return (
        name_of(each),
        str(each.prompts),
        of_passes(efficiency, each.passes),
        number(each.tokens_per_second, 1),
        refusal(each) if is_refused(each) else speed_up(each, each.speed_up),
        number(each.end_to_end, 1),
        "" if is_refused(each) else speed_up(each, each.speed_up_end_to_end),
        identity(each),
        "" if each.roofline is None else f"{each.roofline:.0%}",
        accepted_at_the_root(each),
    )


def _size(at: str) -> tuple[bool, int]:
    """Budgets after lengths, larger after smaller."""
    kind, _, size = at.partition(" ")
    return (kind == "budget", int(size) if size.isdigit() else 0)
