"""The experiments by name: how each is run, and the tables made of its records."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.self_speculation import (
    memory_drafts,
    partial_targets,
    recorded_texts,
    reduced_targets,
    small_hybrid,
)
from benchmarks.self_speculation.paired_counts import Records, Row, Table


@dataclass(frozen=True)
class Experiment:
    """One experiment: how to run it, and how to make tables of its records."""

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
