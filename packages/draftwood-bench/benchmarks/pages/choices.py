"""Tables of methods that change texts: two writers, plans merged, superposed answers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import plan_games, superposed
from benchmarks import two_writers as writers
from benchmarks.common import json_lines
from benchmarks.common.json_lines import RESULTS
from benchmarks.pages.runs import MISSING
from benchmarks.search_sums import cost_ratio
from draftwood_bench.records.statistics import difference
from draftwood_bench.report.table import Table
from draftwood_bench.run.record_folder import RecordFolder
from draftwood_choices.frontier.points import AnswerRecord
from draftwood_choices.frontier.run import PROTOCOL

WAYS = ("superposed", "nucleus batch", "distinct, T = 0")
"""Forms of k answers that the page shows."""


def two_writers(name: str = "two-writers", results: Path = RESULTS) -> str:
    """Rules at knobs chosen on other questions, beside the leader alone; how many after each."""
    known = RecordFolder(results / name / "measured", PROTOCOL, AnswerRecord).read()
    records = writers.complete([each for each in known if not _is_oracle(each.point)])
    if not writers.of(records, writers.LEADER):
        return MISSING
    rows = [_kept(each, records) for each in dict.fromkeys(points_of(records))]
    rows += [_kept(each, known) for each in dict.fromkeys(filter(_is_oracle, points_of(known)))]
    head = ("rule (questions)", "right", "of the leader's", "of its tokens", "over random")
    shown = tuple(row for row in rows if not row[0].startswith("random"))
    return Table("", head, shown).markdown()


def points_of(records: Sequence[AnswerRecord]) -> list[str]:
    """Points of records, as they come."""
    return [each.point for each in records]


def _is_oracle(point: str) -> bool:
    return point.startswith("oracle")


def _kept(point: str, records: Sequence[AnswerRecord]) -> tuple[str, ...]:
    """A rule's row, over the questions that it has answered."""
    own, answers = writers.of(records, point), writers.of(records, writers.LEADER)
    leader = {each: answers[each] for each in own}
    control = writers.of(records, f"random at {point}'s share")
    right = [each.quality for each in own.values()]
    cells = ["", ""]
    if point != writers.LEADER:
        spent = [writers.spent(point.split(",")[0], [each]) for each in own.values()]
        alone = [writers.spent(writers.LEADER, [each]) for each in leader.values()]
        kept = cost_ratio(right, [each.quality for each in leader.values()])
        cells = [str(kept), str(cost_ratio(spent, alone))]
    over = [own[each].quality - control[each].quality for each in control]
    more = str(difference(np.array(over))) if over else ""
    return (f"{point} ({len(own)})", str(difference(np.array(right))), *cells, more)


def games(name: str = "plan-games", results: Path = RESULTS) -> str:
    """Ways to play text games, beside one call per action."""
    played = RecordFolder(results / name, "games", plan_games.Played).read()
    if not played:
        return MISSING
    found: plan_games.Results = {}
    for each in played:
        found.setdefault(each.point, {})[each.seed] = each
    seeds = plan_games.ASKED
    single = [found[plan_games.BY_ACTION][seed] for seed in seeds]
    rows = []
    for point in (plan_games.BY_ACTION, plan_games.ONE_PLAN, plan_games.chosen(found)):
        own = [found[point][seed] for seed in seeds]
        tokens = cost_ratio([each.tokens for each in own], [each.tokens for each in single])
        solved = difference(np.array([each.solved for each in own]))
        rows.append((point, str(solved), "" if own == single else str(tokens)))
    return Table("", ("way", "solved", "of the tokens"), tuple(rows)).markdown()


def answers(name: str = "superposed", results: Path = RESULTS) -> str:
    """Ways to write three answers to one prompt, on the native road."""
    records = json_lines.read(results / name / "superposed.jsonl")
    own = superposed.complete([each for each in records if each["form"].startswith("native")])
    by_way: Mapping[str, list[dict[str, float]]] = json_lines.grouped(own, "way")
    if not by_way:
        return MISSING

    def mean(way: str, what: str) -> str:
        return str(difference(np.array([each[what] for each in by_way[way]])))

    rows = [(way, mean(way, "log_likelihood"), mean(way, "distinct_2")) for way in WAYS]
    head = ("three answers", "log-likelihood", "distinct-2")
    return Table("", head, tuple(rows)).markdown()


TABLES: Mapping[str, Callable[[], str]] = {
    "two-writers": two_writers,
    "games": games,
    "answers": answers,
}


def of_choice(name: str) -> str:
    """The table of this name."""
    return TABLES[name]()
