"""Sections of a report about sweeps: quality against cost, and texts coloured by writer."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from draftwood_bench.records.statistics import Estimate
from draftwood_bench.report import figures
from draftwood_bench.report.findings import Finding
from draftwood_bench.report.sections import Drawing, Gallery, ProtocolSection
from draftwood_bench.run.record_folder import RecordFolder
from draftwood_choices.collaboration.passages import FOLLOWER, LEADER
from draftwood_choices.frontier.points import AnswerRecord
from draftwood_choices.frontier.run import PROTOCOL
from draftwood_choices.frontier.table import compared, leader_written, mean_of, table

SHOWN = 8
"""Prompts whose texts are shown."""
SWEPT = ("rule", "knob")
"""Settings in which sweeps of one figure may differ."""
COSTS: Mapping[str, Callable[[AnswerRecord], float]] = {
    "tokens that the leader wrote, per answer": leader_written,
    "seconds of both, per answer": lambda record: record.seconds,
}
CAPTION = (
    "Bars are 95 % intervals of the difference from the leader alone, paired by prompt; it has none"
    " itself. The models alone are lossless points, each drafted by its own method."
)
TEXTS = "What the leader wrote is underlined and coloured; the follower wrote the rest."


@dataclass(frozen=True)
class Sweep:
    """Records of a rule at several values of its knob.

    Attributes:
        folder: of the records.
        settings: of the run.
        records: at least one of each model alone.
        commits: that measured it.
    """

    folder: Path
    settings: Mapping[str, Any]
    records: Sequence[AnswerRecord]
    commits: Sequence[str | None] = ()

    @property
    def comparable(self) -> str:
        """Alike for sweeps that one figure may show."""
        common = {name: each for name, each in self.settings.items() if name not in SWEPT}
        return json.dumps([common, sorted({each.prompt for each in self.records})], sort_keys=True)


def report(folders: Sequence[Path]) -> list[ProtocolSection]:
    """One section for all sweeps of the same models on the same prompts.

    Raises:
        ValueError: for records that are none, and for a run that has not come to the leader alone.
    """
    groups: dict[str, list[Sweep]] = {}
    for folder in folders:
        sweep = read(folder)
        groups.setdefault(sweep.comparable, []).append(sweep)
    return [_section(group) for group in groups.values()]


def read(folder: Path) -> Sweep:
    """Read a sweep from its folder."""
    found = RecordFolder(folder, PROTOCOL, AnswerRecord)
    records = found.read()
    if not any(each.point == f"{LEADER} alone" for each in records):
        raise ValueError(f"{folder} holds no answer of the leader alone yet; let its run go on")
    return Sweep(folder, found.settings(), records, found.commits())


def curve_of(point: str) -> str:
    """Name of the curve on which a point lies: its rule, a control, or a model alone."""
    return point.split(",")[0] if "=" in point.split(" at ")[0] else point.split(" at ")[0]


def curves(
    sweeps: Sequence[Sweep], cost: Callable[[AnswerRecord], float]
) -> dict[str, list[tuple[float, Estimate]]]:
    """Quality against a cost, by curve; intervals are those of the paired difference."""
    found: dict[str, list[tuple[float, Estimate]]] = {}
    for sweep in sweeps:
        for point, (mean, over) in compared(sweep.records).items():
            best = mean.value + over.value  # of the leader alone on the same prompts
            paired = replace(mean, low=best - over.high, high=best - over.low)
            own = [each for each in sweep.records if each.point == point]
            found.setdefault(curve_of(point), []).append((mean_of(own, cost), paired))
    return found


def _section(sweeps: Sequence[Sweep]) -> ProtocolSection:
    first = sweeps[0]
    facts = {name: _told(each) for name, each in first.settings.items() if name not in SWEPT}
    rules = ", ".join(f"{each.settings['rule']} by {each.settings['knob']}" for each in sweeps)
    counted = len({each.prompt for each in first.records})
    style = figures.styles(list(curves(sweeps, leader_written)))
    score = first.records[0].score
    findings = [
        Finding(
            f"Quality against {name.split(',')[0]}",
            figures.trades(curves(sweeps, cost), style, name, score),
            CAPTION,
        )
        for name, cost in COSTS.items()
    ]
    return ProtocolSection(
        _headline(sweeps),
        PROTOCOL,
        [each.folder for each in sweeps],
        {"rules": rules, "answered": f"{counted} prompts", **facts},
        [
            replace(table(each.records), title=f"{each.folder.name}: {each.settings['rule']}")
            for each in sweeps
        ],
        findings,
        [Gallery("Texts by writer", TEXTS, [x for each in sweeps for x in _texts(each)])],
        list(dict.fromkeys(commit for each in sweeps for commit in each.commits)),
    )


def _told(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _headline(sweeps: Sequence[Sweep]) -> str:
    """The rule's point of the greatest quality, beside the leader alone."""
    found = [
        (sweep, point, mean, over)
        for sweep in sweeps
        for point, (mean, over) in compared(sweep.records).items()
        if curve_of(point) == sweep.settings["rule"]
    ]
    if not found:
        return f"{sweeps[0].settings['rule']}: no point of it has been measured yet"
    sweep, point, mean, over = max(found, key=lambda each: each[2].value)
    own = [each for each in sweep.records if each.point == point]
    alone = [each for each in sweep.records if each.point == f"{LEADER} alone"]
    share = mean_of(own, leader_written) / max(1, mean_of(alone, leader_written))
    return (
        f"{point}: quality {mean.value:.2f} beside {mean.value + over.value:.2f} of the leader"
        f" alone, for {share:.0%} of its tokens"
    )


def _texts(sweep: Sweep) -> list[Drawing]:
    """Texts of the rule and its controls on the first prompts, coloured by writer."""
    shown = list(dict.fromkeys(each.prompt for each in sweep.records))[:SHOWN]
    return [
        Drawing(each.point, f"prompt {each.prompt}", coloured(each.passages))
        for each in sweep.records
        if each.prompt in shown and each.passages and not each.point.endswith(" alone")
    ]


def coloured(passages: Sequence[Sequence[str]]) -> str:
    """A text whose passages are marked by their writers."""
    names = {LEADER: "leader", FOLLOWER: "follower"}
    parts = "".join(
        f'<span class="by {names[writer]}" title="{names[writer]}">{escape(text)}</span>'
        for writer, text in passages
    )
    return f'<p class="context written">{parts}</p>'
