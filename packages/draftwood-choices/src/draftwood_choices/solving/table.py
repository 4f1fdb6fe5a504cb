"""A table of ways to search: share solved beside cost, with paired intervals."""

from collections.abc import Sequence

import numpy as np

from draftwood_bench.records.statistics import Estimate, difference
from draftwood_bench.report.table import Table
from draftwood_choices.solving.run import PLAIN, SolvedRecord

COLUMNS = (
    *("point", "prompts", "solved [95 %]", "more than plain [95 %]", "mean right", "any right"),
    *("tokens", "passes", "judge calls", "seconds"),
)


def compared(records: Sequence[SolvedRecord]) -> dict[str, tuple[Estimate, Estimate]]:
    """Share that each point solves, and what it has over one greedy answer, prompt by prompt."""
    plain = {each.prompt: each.solved for each in records if each.point == PLAIN}
    found = dict[str, tuple[Estimate, Estimate]]()
    for point in dict.fromkeys(each.point for each in records):
        own = [each for each in records if each.point == point and each.prompt in plain]
        values = np.array([each.solved for each in own])
        before = np.array([plain[each.prompt] for each in own])
        found[point] = difference(values), difference(values - before)
    return found


def table(records: Sequence[SolvedRecord]) -> Table:
    """One row for each point, means over prompts."""
    rows = []
    for point, (share, more) in compared(records).items():
        own = [each for each in records if each.point == point]
        rows.append(
            (
                *(point, str(len(own)), str(share), str(more)),
                *(f"{mean_of(own, name):.2f}" for name in ("mean_solved", "any_solved")),
                *(f"{mean_of(own, name):.1f}" for name in ("tokens", "passes", "judge_calls")),
                f"{mean_of(own, 'seconds'):.2f}",
            )
        )
    return Table("share solved and cost of each point", COLUMNS, tuple(rows))


def mean_of(records: Sequence[SolvedRecord], name: str) -> float:
    """Mean of a field over answers."""
    return sum(getattr(each, name) for each in records) / len(records)
