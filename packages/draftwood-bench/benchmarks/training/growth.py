"""Fit block efficiency over the logarithm of a drafter's data and size.

    python -m benchmarks.training.growth

Reads what `drafters.py train` measured: EAGLE heads of one layer trained on three amounts of data,
and heads of three sizes trained on the same data. Intervals come from drawing prompts again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.common.json_lines import read
from benchmarks.common.scripts import print_table
from benchmarks.training.drafters import RECORDS
from draftwood_bench.records.statistics import Estimate, estimate_of

DATA = ("eagle, 20k data", "eagle, kl", "eagle, 180k data")
SIZE = ("eagle, kl", "eagle, 2 layers", "eagle, 4 layers")
TITLE = "What ten times as much data, or as many weights, adds to block efficiency"


def rows() -> list[dict[str, str]]:
    """A line per temperature and question, with 8 nodes a step."""
    found = read(RECORDS)
    table = []
    for what, names, measure in (("data", DATA, "data"), ("weights", SIZE, "weights")):
        for temperature in (0.0, 1.0):
            own = [
                record
                for record in found
                if (record["at"], record["temperature"]) == ("8 nodes", temperature)
            ]
            slope, points = fitted(own, names, measure)
            table.append(
                {
                    "ten times the": f"{what}, T = {temperature:g}",
                    "points": ", ".join(f"{size:.3g}: {value:.2f}" for size, value in points),
                    "adds": f"{slope.value:+.2f} [{slope.low:+.2f}, {slope.high:+.2f}]",
                }
            )
    return table


def fitted(
    records: Sequence[Mapping[str, Any]], names: Sequence[str], measure: str
) -> tuple[Estimate, list[tuple[float, float]]]:
    """Slope of the line per factor of ten, and the points it goes through."""
    sizes = [next(r[measure] for r in records if r["name"] == name) for name in names]
    prompts = list(dict.fromkeys(record["prompt"] for record in records))
    sums = np.zeros((len(names), len(prompts), 2))
    for record in records:
        if record["name"] in names:
            place = names.index(record["name"]), prompts.index(record["prompt"])
            sums[place] += record["tokens"], record["runs"]
    slope = estimate_of(
        sums, lambda pooled: np.polyfit(np.log10(sizes), pooled[..., 0] / pooled[..., 1], 1)[0]
    )
    tokens, runs = sums.sum(1).T
    return slope, list(zip(map(float, sizes), (tokens / runs).tolist(), strict=True))


if __name__ == "__main__":
    print_table(rows(), TITLE)
