"""Check which published orderings of methods hold."""

from collections.abc import Sequence

from draftwood_bench.records.files import Record
from draftwood_bench.records.statistics import Estimate, block_efficiency_ratio
from draftwood_bench.report.best_shapes import best_shape
from draftwood_bench.report.table import Table

CLAIMS = (  # published orderings of block efficiency
    *(("rsd-s", "rsd-c"), ("rsd-c", "spectr"), ("rsd-c", "specinfer"), ("spectr", "speculative")),
    *(
        ("rsd-c + greedy-plus-one", "rsd-c"),
        ("rsd-c + traversal", "rsd-c"),
        ("rsd-s + traversal", "rsd-s"),
    ),
)


def orderings(records: Sequence[Record]) -> Table:
    """For each published ordering, where it holds, with paired bootstrap intervals of the ratio."""
    head = ("claim", "T", "compared at", "holds", "clearly", "against it clearly", "mean ratio")
    rows = []
    for better, worse in CLAIMS:
        for temperature in sorted({r.temperature for r in records}, reverse=True):
            for kind in ("length", "budget"):
                here = [
                    r for r in records if r.temperature == temperature and r.at.startswith(kind)
                ]
                known = [
                    found
                    for at in dict.fromkeys(r.at for r in here)
                    if (found := _ratio(here, better, worse, at))
                ]
                if known:
                    counts = (sum(r.value >= 1 for r in known), sum(r.low > 1 for r in known))
                    counts += (sum(r.high < 1 for r in known),)
                    shares = (f"{count} of {len(known)}" for count in counts)
                    mean = sum(ratio.value for ratio in known) / len(known)
                    rows.append(
                        (
                            f"{better} >= {worse}",
                            f"{temperature:g}",
                            f"fixed {kind}",
                            *shares,
                            f"{mean:.3f}",
                        )
                    )
    return Table("published orderings", head, tuple(rows))


def _ratio(records: Sequence[Record], better: str, worse: str, at: str) -> Estimate | None:
    one, other = best_shape(records, better, at), best_shape(records, worse, at)
    return block_efficiency_ratio(one, other) if one and other else None
