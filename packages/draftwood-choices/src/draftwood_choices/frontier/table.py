"""A table of points: quality beside cost, with paired intervals."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from draftwood_bench.records.statistics import Estimate, difference
from draftwood_choices.collaboration.passages import LEADER
from draftwood_choices.frontier.points import AnswerRecord

if TYPE_CHECKING:
    from rich.table import Table

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


def table(records: Sequence[AnswerRecord]) -> "Table":
    """One row for each point, means over prompts."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in COLUMNS:
        made.add_column(title, justify="left" if title == "point" else "right")
    for point, (mean, over) in compared(records).items():
        own = [each for each in records if each.point == point]
        count = len(own)
        tokens = sum(each.tokens for each in own)
        led = sum(each.leader_tokens + each.leader_dropped for each in own)
        made.add_row(
            *(point, str(count), str(mean), str(over)),
            f"{sum(each.leader_tokens for each in own) / max(1, tokens):.0%}",
            f"{led / count:.1f}",
            f"{sum(each.caught_up for each in own) / count:.1f}",
            f"{sum(each.leader_passes for each in own) / count:.1f}",
            f"{sum(each.follower_passes for each in own) / count:.1f}",
            f"{sum(each.seconds for each in own) / count:.2f}",
        )
    return made
