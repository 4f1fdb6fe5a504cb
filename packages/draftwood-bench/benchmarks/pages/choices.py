"""Tables of methods that change texts: two writers, plans merged, superposed answers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import plan_games, superposed
from benchmarks import two_writers as writers
from benchmarks.common import json_lines
from benchmarks.common.json_lines import RESULTS
from benchmarks.pages.runs import MISSING
from benchmarks.search_sums import cost_ratio
from draftwood_bench.records.files import is_clean
from draftwood_bench.records.statistics import difference
from draftwood_bench.report.table import Table
from draftwood_bench.run.record_folder import RecordFolder
from draftwood_choices.frontier.points import AnswerRecord
from draftwood_choices.frontier.run import PROTOCOL

WAYS = ("superposed", "nucleus batch", "distinct, T = 0")
"""Forms of k answers that the page shows."""


def _clean(folder: RecordFolder[Any]) -> list[Any]:
    """Records of a folder all of whose starts were of clean commits; none of another."""
    found = folder.read()
    return found if found and all(map(is_clean, folder.commits())) else []


def two_writers(name: str = "two-writers", results: Path = RESULTS) -> str:
    """Rules at knobs chosen on other questions, beside the leader alone; how many after each."""
    known = _clean(RecordFolder(results / name / "measured", PROTOCOL, AnswerRecord))
    records = writers.complete([each for each in known if not each.point.startswith("oracle")])
    if not writers.of(records, writers.LEADER):
        return MISSING
    rows = list[tuple[str, ...]]()
    for point in dict.fromkeys(each.point for each in known):
        if not point.startswith("random"):
            own = known if point.startswith("oracle") else records
            rows.append((f"{point} ({len(writers.of(own, point))})", *_cells(point, own)))
    head = ("rule (questions)", "right", "of the leader's", "of its tokens", "over random")
    return Table("", head, tuple(rows)).markdown()


def _cells(point: str, records: Sequence[AnswerRecord]) -> tuple[str, ...]:
    kept = writers.kept(point, records)
    if point == writers.LEADER:
        return (str(kept.right), "", "", "")
    return (str(kept.right), str(kept.accuracy), str(kept.tokens), str(kept.over_random or ""))


def games(name: str = "plan-games", results: Path = RESULTS) -> str:
    """Ways to play text games, beside one call per action."""
    found = plan_games.by_point(_clean(RecordFolder(results / name, "games", plan_games.Played)))
    if not found:
        return MISSING
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
    records = json_lines.read_clean(results / name / "superposed.jsonl")
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
