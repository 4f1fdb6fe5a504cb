"""A table of ways to search: share solved beside cost, with paired intervals."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from draftwood_bench.records.statistics import Estimate, difference
from draftwood_choices.solving.run import PLAIN, SolvedRecord

if TYPE_CHECKING:
    from rich.table import Table

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


def table(records: Sequence[SolvedRecord]) -> "Table":
    """One row for each point, means over prompts."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in COLUMNS:
        made.add_column(title, justify="left" if title == "point" else "right")
    for point, (share, more) in compared(records).items():
        own = [each for each in records if each.point == point]
        means = {
            name: sum(getattr(each, name) for each in own) / len(own)
            for name in ("mean_solved", "any_solved", "tokens", "passes", "judge_calls", "seconds")
        }
        made.add_row(
            *(point, str(len(own)), str(share), str(more)),
            *(f"{means[name]:.2f}" for name in ("mean_solved", "any_solved")),
            *(f"{means[name]:.1f}" for name in ("tokens", "passes", "judge_calls")),
            f"{means['seconds']:.2f}",
        )
    return made
