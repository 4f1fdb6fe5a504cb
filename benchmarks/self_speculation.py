"""What drafting with the target itself, or with what is at hand, is worth: counts with intervals.

    python benchmarks/self_speculation.py run shadow exits       # or all; resumable
    python benchmarks/self_speculation.py run shadow --quiet --threads 2
    python benchmarks/self_speculation.py show                   # the tables, in Markdown

Experiments: layers, exits, shadow, windowed, merged, memory, hybrids. Each has its records, one
line per arm and prompt; an arm and a prompt that are there are not run again. Counts do not depend
on what else the machine does. Seconds do: `--quiet` says that nothing else computes, and records
again what was recorded otherwise.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

import memory_drafts
import partial_targets
import recorded_texts
import reduced_targets
import small_hybrid
from paired_counts import Records, Row, Table
from processes import print_table


@dataclass(frozen=True)
class Experiment:
    """How an experiment is run, and its tables made of the records."""

    run: Callable[[Records], None]
    tables: Callable[[Sequence[Row]], Iterator[Table]]


EXPERIMENTS = {
    "layers": Experiment(partial_targets.run_layers, partial_targets.layer_tables),
    "exits": Experiment(partial_targets.run_exits, partial_targets.exit_tables),
    "shadow": Experiment(reduced_targets.run_shadow, reduced_targets.shadow_tables),
    "windowed": Experiment(reduced_targets.run_windowed, reduced_targets.windowed_tables),
    "merged": Experiment(recorded_texts.run, recorded_texts.tables),
    "memory": Experiment(memory_drafts.run, memory_drafts.tables),
    "hybrids": Experiment(small_hybrid.run, small_hybrid.tables),
}


def tables(name: str) -> Iterator[Table]:
    """The tables of an experiment; none before it has run."""
    rows = list(Records(name).rows.values())
    if rows:
        yield from (table for table in EXPERIMENTS[name].tables(rows) if table[1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("act", choices=["run", "show"])
    parser.add_argument("names", nargs="*", metavar="EXPERIMENT", help="all where none is named")
    parser.add_argument("--quiet", action="store_true", help="nothing else computes")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in EXPERIMENTS]:
        parser.error(f"there is no experiment {unknown[0]!r}; there are {', '.join(EXPERIMENTS)}")
    torch.set_num_threads(given.threads)
    for name in given.names or EXPERIMENTS:
        if given.act == "run":
            EXPERIMENTS[name].run(Records(name, given.quiet))
        for title, rows in tables(name):
            print_table(rows, f"**{title}**")
            print()


if __name__ == "__main__":
    main()
