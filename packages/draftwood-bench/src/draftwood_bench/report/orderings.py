"""Check which published orderings of methods hold."""

from collections.abc import Sequence

from draftwood_bench.records.files import Record
from draftwood_bench.records.statistics import (
    FEWEST_PASSES,
    Estimate,
    block_efficiency_ratio,
    decoding,
    paired,
    passes,
    pooled_ratio,
)
from draftwood_bench.report.best_shapes import best_shape
from draftwood_bench.report.table import Table

CLAIMS = (  # published orderings of block efficiency
    *(("rsd-s", "rsd-c"), ("rsd-c", "spectr"), ("rsd-c", "specinfer"), ("spectr", "speculative")),
    *(("rsd-s", "speculative"), ("rsd-c", "speculative"), ("block", "speculative")),
    *(("spectr + traversal", "spectr"), ("specinfer + traversal", "specinfer")),
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


def seconds(records: Sequence[Record]) -> Table:
    """Tokens per second of trees over the chain's at equal budget, on the same prompts; empty where
    nothing was timed.
    """
    rows = []
    for better, worse in (claim for claim in CLAIMS if claim[1] == "speculative"):
        for temperature in sorted({r.temperature for r in records}, reverse=True):
            here = [r for r in records if r.temperature == temperature]
            for at in dict.fromkeys(r.at for r in here if r.at.startswith("budget")):
                one, other = best_shape(here, better, at), best_shape(here, worse, at)
                found = pooled_ratio(paired(one, other), decoding) if one and other else None
                if found is not None:
                    rows.append((f"{better} over {worse}", f"{temperature:g}", at, str(found)))
    head = ("trees over chains", "T", "at", "ratio [95 % interval]")
    return Table("tokens per second over the chain's", head, tuple(rows))


def _ratio(records: Sequence[Record], better: str, worse: str, at: str) -> Estimate | None:
    """Ratio of two methods; None where one is not measured, or in too few passes to tell."""
    one, other = best_shape(records, better, at), best_shape(records, worse, at)
    if not one or not other or min(passes(one), passes(other)) < FEWEST_PASSES:
        return None
    return block_efficiency_ratio(one, other)
