"""Recursive Speculative Decoding: block efficiency by budget, and which orderings hold."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.pages.runs import MISSING, measured
from draftwood_bench.records.files import Record
from draftwood_bench.records.statistics import block_efficiency, mbsu, summaries
from draftwood_bench.report.best_shapes import fastest
from draftwood_bench.report.orderings import orderings, seconds
from draftwood_bench.report.scores import quality_table
from draftwood_bench.report.table import Table
from draftwood_bench.report.tables import speed_up

PAIRS = {
    "rsd": "TinyLlama, stories",
    "rsd-lm": "SmolLM2, LM",
    "grid-eagle": "SmolLM2",
    "grid-stories": "TinyLlama",
    "grid-coder": "coders",
    "grid-code": "coders, code",
    "grid-openings": "TinyLlama, openings",
}
"""Runs, and what pairs of target and drafter they measured."""
TIMED = {name: name.replace("grid", "timed") for name in PAIRS if name.startswith("grid-")}
"""Runs in seconds of what the others found best."""
IMPLIED = "rsd-c >= speculative", "block >= speculative"
"""Claims that follow from others, or from another paper; ``draftwood bench show`` tells of them."""
METHODS = ("speculative", "block", "spectr", "specinfer", "rsd-c", "rsd-s")  # as papers order them


def _place(method: str) -> int:
    return METHODS.index(method) if method in METHODS else len(METHODS)


def claims() -> str:
    """Published orderings down, the highest and lowest temperature across, for each pair of target
    and drafter.

    Of those between, and of verifiers beside each method's own, ``draftwood bench show`` tells.
    """
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for name in PAIRS:
        found = measured(name)
        for row in orderings(found.records).rows if found else ():
            claim, temperature, where, holds, clearly, against, mean = row
            if where != "fixed budget" or " + " in claim or claim in IMPLIED:
                continue
            counts = f"{holds.replace(' of ', '/')}, {clearly.split()[0]}:{against.split()[0]}"
            cells.setdefault((claim, PAIRS[name]), {})[temperature] = f"{mean} ({counts})"
    every = sorted({t for found in cells.values() for t in found}, key=float, reverse=True)
    known = dict.fromkeys((*every[:1], *every[-1:]))
    rows = [
        (claim, pair, *(found.get(temperature, "") for temperature in known))
        for (claim, pair), found in sorted(cells.items(), key=lambda each: _order(each[0]))
    ]
    head = ("claim", "pair", *(f"T = {temperature}" for temperature in known))
    return Table("", head, tuple(rows)).markdown() if rows else MISSING


def memory_bound(temperature: str) -> str:
    """Memory-bound speed-up by pair and method with its own verifier, of the shape that is best.

    The node budget stands behind it.

    Args:
        temperature: at which texts were drawn.
    """
    cells: dict[str, dict[str, str]] = {}
    for name in TIMED:
        found = measured(name)
        ratio = found.run.draft_ratio if found else None
        if found is None or ratio is None:
            continue
        groups: dict[str, list[Record]] = {}
        for record in found.records:
            fits = record.temperature == float(temperature) and record.at.startswith("budget ")
            if fits and " + " not in record.method:
                groups.setdefault(record.method, []).append(record)
        for method, records in groups.items():
            if told := _bound_cell(records, ratio):
                cells.setdefault(PAIRS[name], {})[method] = told
    methods = sorted({each for row in cells.values() for each in row}, key=_place)
    rows = [(pair, *(row.get(each, "") for each in methods)) for pair, row in cells.items()]
    head = (f"MBSU, T = {temperature}", *methods)
    return Table("", head, tuple(rows)).markdown() if rows else MISSING


def _bound_cell(records: Sequence[Record], ratio: float) -> str:
    """The greatest memory-bound speed-up of a method's shapes, and at which budget."""
    best = fastest(records, ratio)
    known = block_efficiency(best) if best else None
    if best is None or known is None:
        return ""
    value, low, high = (
        mbsu(each, best[0].draft_steps, ratio) for each in (known.value, known.low, known.high)
    )
    return f"{value:.2f} [{low:.2f}, {high:.2f}] ({_number(best[0].at)})"


def trees_over_chains() -> str:
    """RSD-S over the chain at equal budget, in seconds, for each pair and temperature that was
    timed, on the kinds of prompts of its grid; of RSD-C ``draftwood bench show`` tells.
    """
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for name, timed in TIMED.items():
        found = measured(timed)
        records = _kinds(name, found.records).get(PAIRS[name], []) if found else []
        for what, temperature, at, ratio in seconds(records).rows:
            if what.startswith("rsd-s"):
                cells.setdefault((PAIRS[name], temperature), {})[at] = ratio
    places = sorted({at for found in cells.values() for at in found}, key=_number)
    rows = [(*key, *(found.get(at, "") for at in places)) for key, found in cells.items()]
    head = ("pair", "T", *places)
    return Table("", head, tuple(rows)).markdown() if rows else MISSING


def in_seconds() -> str:
    """Tokens per second over plain decoding's, of each method's fastest shape.

    Shapes are those that were best in the grid, at a length or a budget, which stands behind it.
    """
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for name, timed in TIMED.items():
        found = measured(timed)
        if found is None:
            continue
        for pair, records in _kinds(name, found.records).items():
            for each in summaries(records, found.run):
                if each.shape is not None and each.speed_up is not None:
                    row = cells.setdefault((pair, f"{each.temperature:g}"), {})
                    before = row.get(each.method)
                    if before is None or each.speed_up.value > before.speed_up.value:
                        row[each.method] = each
    methods = sorted({each for row in cells.values() for each in row}, key=_place)
    rows = [(*key, *(_ratio(row.get(each)) for each in methods)) for key, row in cells.items()]
    return Table("", ("pair", "T", *methods), tuple(rows)).markdown() if rows else MISSING


def _kinds(name: str, records: Sequence[Record]) -> dict[str, list[Record]]:
    """Group records of a pair: those on kinds of prompts of its grid, and each kind beside."""
    grid = measured(name)
    own = {record.category for record in grid.records} if grid else None
    found = dict[str, list[Record]]()
    for record in records:
        beside = own is not None and record.category not in own
        key = f"{PAIRS[name]}; {record.category}" if beside else PAIRS[name]
        found.setdefault(key, []).append(record)
    return found


def _ratio(found: Any) -> str:
    return "" if found is None else f"{speed_up(found, found.speed_up)} ({found.at})"


def _number(at: str) -> int:
    return int(at.split()[1])


def scores(name: str, temperature: str) -> str:
    """Quality by method beside plain decoding's."""
    found = measured(name)
    table = quality_table(found.records, float(temperature)) if found else None
    return table.markdown() if table and table.rows else MISSING


def asked(name: str) -> str:
    """Number of prompts of a run, by category."""
    found = measured(name)
    if found is None:
        return MISSING
    prompts = {record.prompt: record.category for record in found.records}
    counts = Counter(prompts.values())
    told = ", ".join(f"{category} {count}" for category, count in counts.items())
    return f"n = {len(prompts)} prompts ({told})"


def _order(key: tuple[str, str]) -> int:
    firsts = ("rsd-s >= rsd-c", "rsd-c >= spectr", "rsd-c >= specinfer", "spectr >=")
    return next((place for place, name in enumerate(firsts) if key[0].startswith(name)), 9)


def summary_line() -> list[str]:
    """Compare the published order with the lowest temperature of the first run."""
    found = measured("rsd")
    rows = orderings(found.records).rows if found else ()
    here = [row for row in rows if row[2] == "fixed budget"]
    lowest = min((row[1] for row in here), key=float, default="")
    told = [
        f"{claim} at {holds} budgets ({mean} on average)"
        for claim, temperature, _, holds, _, _, mean in here
        if temperature == lowest and claim in ("rsd-s >= rsd-c", "rsd-c >= spectr")
    ]
    return [f"**Trees, T = {lowest}, block efficiency:** {'; '.join(told)}."] if told else []
