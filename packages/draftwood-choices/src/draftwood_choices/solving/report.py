"""Sections of a report about search: share solved against cost, and search trees."""

import json
from collections.abc import Sequence
from pathlib import Path

from draftwood_bench.report import figures
from draftwood_bench.report.findings import Finding
from draftwood_bench.report.sections import Drawing, Gallery, ProtocolSection
from draftwood_bench.run.record_folder import RecordFolder
from draftwood_choices.search.nodes import as_html, node_from
from draftwood_choices.solving.run import PLAIN, PROTOCOL, SolvedRecord
from draftwood_choices.solving.table import compared, mean_of, table

SHOWN = 6
"""Prompts whose searches are drawn."""
COSTS = {
    "tokens": "tokens per task, all answers",
    "passes": "forward passes per task",
    "seconds": "seconds per task",
}
CAPTION = (
    "Bars are 95 % intervals of the difference from one greedy answer, paired by prompt; it has"
    " none itself. Costs are of all that a search wrote."
)
TREES = (
    "Each node is an answer or a step, with the value by which the search ranked it and the mean"
    " log-probability of its tokens. ✓ and a thick border mark the path to the answer."
)


def report(folders: Sequence[Path]) -> list[ProtocolSection]:
    """One section for each folder.

    Raises:
        ValueError: for records that are none, and for a run without any.
    """
    return [_section(folder) for folder in folders]


def _section(folder: Path) -> ProtocolSection:
    found = RecordFolder(folder, PROTOCOL, SolvedRecord)
    records = found.read()
    if not any(each.point == PLAIN for each in records):
        raise ValueError(f"{folder} holds no greedy answer yet; let its run go on")
    facts = {
        name: each if isinstance(each, str) else json.dumps(each)
        for name, each in found.settings().items()
        if each is not None
    }
    counted = len({each.prompt for each in records})
    return ProtocolSection(
        _headline(records),
        PROTOCOL,
        [folder],
        {"answered": f"{counted} prompts", **facts},
        [table(records)],
        [_finding(records, name) for name in COSTS],
        [Gallery("Search trees", TREES, _drawings(records))],
        found.commits(),
    )


def _finding(records: Sequence[SolvedRecord], cost: str) -> Finding:
    curves = {}
    plain = None
    for point, (share, more) in compared(records).items():
        own = [each for each in records if each.point == point]
        plain = share.value - more.value
        paired = type(share)(share.value, plain + more.low, plain + more.high, share.prompts)
        curves[point] = [(mean_of(own, cost), paired)]
    drawing = figures.trades(curves, figures.styles(list(curves)), COSTS[cost], "share solved")
    return Finding(f"Share solved against {cost}", drawing, CAPTION)


def _headline(records: Sequence[SolvedRecord]) -> str:
    """The search that solves most, beside one greedy answer."""
    found = compared(records)
    best = max(
        (each for each in found if each != PLAIN), key=lambda x: found[x][0].value, default=""
    )
    plain = [each for each in records if each.point == PLAIN]
    share = mean_of(plain, "solved")
    if not best:
        return f"{PLAIN} solves {share:.0%} of {len(plain)} tasks"
    own = [each for each in records if each.point == best]
    times = mean_of(own, "tokens") / max(1.0, mean_of(plain, "tokens"))
    return (
        f"{best} solves {mean_of(own, 'solved'):.0%} of {len(own)} tasks, {PLAIN} {share:.0%}, for"
        f" {times:.1f} times its tokens"
    )


def _drawings(records: Sequence[SolvedRecord]) -> list[Drawing]:
    shown = list(dict.fromkeys(each.prompt for each in records))[:SHOWN]
    return [
        Drawing(
            each.point,
            f"prompt {each.prompt}: {'solved' if each.solved else 'not solved'}",
            as_html([node_from(dict(node)) for node in each.nodes]),
        )
        for each in records
        if each.prompt in shown and len(each.nodes) > 1
    ]
