"""A table of points: quality beside cost, with paired intervals."""

from collections.abc import Callable, Sequence

import numpy as np

from draftwood_bench.records.statistics import Estimate, difference
from draftwood_bench.report.table import Table
from draftwood_choices.collaboration.passages import LEADER
from draftwood_choices.frontier.points import AnswerRecord

COLUMNS = (
    *("point", "prompts", "quality [95 %]", "less than the leader alone [95 %]", "leader's share"),
    *("leader's tokens", "caught up", "passes, leader", "follower", "seconds"),
)


def compared(records: Sequence[AnswerRecord]) -> dict[str, tuple[Estimate, Estimate]]:
    """Quality of each point, and what the leader alone has over it, prompt by prompt."""
    points = list(dict.fromkeys(each.point for each in records))
    by_point = {
        point: {each.prompt: each for each in records if each.point == point} for point in points
    }
    best, found = by_point[f"{LEADER} alone"], dict[str, tuple[Estimate, Estimate]]()
    for point, own in by_point.items():
        common = [prompt for prompt in own if prompt in best]
        values = np.array([own[prompt].quality for prompt in common])
        over = np.array([best[prompt].quality for prompt in common]) - values
        found[point] = difference(values), difference(over)
    return found


def table(records: Sequence[AnswerRecord]) -> Table:
    """One row for each point, means over prompts."""
    rows = []
    for point, (mean, over) in compared(records).items():
        own = [each for each in records if each.point == point]
        tokens = sum(each.tokens for each in own)
        rows.append(
            (
                *(point, str(len(own)), str(mean), str(over)),
                f"{sum(each.leader_tokens for each in own) / max(1, tokens):.0%}",
                f"{mean_of(own, leader_written):.1f}",
                f"{mean_of(own, lambda each: each.caught_up):.1f}",
                f"{mean_of(own, lambda each: each.leader_passes):.1f}",
                f"{mean_of(own, lambda each: each.follower_passes):.1f}",
                f"{mean_of(own, lambda each: each.seconds):.2f}",
            )
        )
    return Table("quality and cost of each point", COLUMNS, tuple(rows))


def leader_written(record: AnswerRecord) -> int:
    """Tokens that the leader wrote, those for nothing among them."""
    return record.leader_tokens + record.leader_dropped


def mean_of(records: Sequence[AnswerRecord], cost: Callable[[AnswerRecord], float]) -> float:
    """Mean of a cost over answers."""
    return sum(map(cost, records)) / len(records)
