"""Speed by number of threads, up to the machine's cores and beyond, and what a simulation foretells
for more.

    make bench-cores
    python -m benchmarks.cores run --models smollm2-135m --threads 1,2,4,8,16
    python -m benchmarks.cores show

Passes over each number of nodes are timed in turns over numbers of threads; more threads than cores
share what there is. Then one thread does passes that are split for many and times each task, and
the schedule is simulated (``common/schedule.py``). To open a phase costs what passes of two threads
over one node took beyond their simulation, so that for two threads the larger passes are foretold
and seen; more threads read the same line of the caches one after the other, so each further one is
counted with ``--line`` seconds. Tasks are taken to run as fast beside others as alone: a machine
whose memory cannot give the bytes per second in the last column is slower. Nothing else should
compute.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from unittest.mock import patch

import numpy as np

import draftwood
from benchmarks.common.json_lines import RESULTS, append, grouped, read
from benchmarks.common.schedule import Foretold, foretell, traced
from benchmarks.common.scripts import parser_of, print_table
from draftwood.costs.curve import LENGTH, tree_parents
from draftwood.models.native import NativeModel
from draftwood.native import threads as own_threads
from draftwood.tree import DraftTree
from draftwood_bench.records.machine import processor
from draftwood_bench.run.describe import commit

RECORDS = RESULTS / "cores.jsonl"
NODES = (1, 8, 16)
FORETOLD = (2, 4, 8, 16, 32)
TRACES = 15
LINE = 60e-9
"""Seconds in which another core gets a line of the caches that one has just written, usual for
cores of one die.
"""


@contextmanager
def cores_of(count: int) -> Iterator[None]:
    """Run passes with so many threads, whatever the machine has."""
    module = "draftwood.models.native.model.threads"
    with patch(module, lambda: count), patch.object(own_threads, "cores", lambda: count):
        yield


class Passes:
    """Passes of one model behind the same tokens."""

    def __init__(self, model: NativeModel) -> None:
        random = np.random.default_rng(0)

        def tokens(count: int) -> list[int]:
            return random.integers(model.vocab_size, size=count).tolist()

        self.model, self.session = model, model.start()
        self.session.extend(tokens(LENGTH), keep="last")
        self.trees = {n: DraftTree.of(tokens(n), tree_parents(n)) for n in NODES}

    def seconds(self, nodes: int, threads: int) -> float:
        """Time one pass."""
        with cores_of(threads):
            since = time.perf_counter()
            self.session.forward(self.trees[nodes])
            return time.perf_counter() - since

    def traces(self, nodes: int, threads: int) -> list[list[float]]:
        """Seconds of each phase's tasks in passes split for so many threads."""
        with traced(self.model, threads) as trace:
            for number in range(TRACES + 2):
                self.session.forward(self.trees[nodes])
                if number > 1:  # the first warm up
                    trace.keep()
        return trace.typical()


def run(names: Sequence[str], counts: Sequence[int], rounds: int, line: float, out: Path) -> None:
    """Time, trace, simulate and record each model."""
    for name in names:
        model = draftwood.load(name, method="plain").model
        if not isinstance(model, NativeModel):
            raise SystemExit(f"{name} does not run in C++; name a model that does")
        passes = Passes(model)
        facts = {"model": name, "processor": processor(), "cores": own_threads.cores()}
        facts |= {"commit": commit()}
        seen = _timed(passes, counts, rounds)
        for (nodes, threads), seconds in seen.items():
            append(out, {**facts, "nodes": nodes, "threads": threads, "seconds": seconds})
        opening = opening_of(passes, NODES[0], seen.get((NODES[0], 2)))
        for nodes in NODES:
            for threads in FORETOLD:
                paid = opening + line * (threads - 2)
                found = foretell(passes.traces(nodes, threads), threads, paid)
                append(out, {**facts, **_told(found, nodes, threads, model.weight_bytes)})
        print(f"{name} is measured", flush=True)


def _timed(passes: Passes, counts: Sequence[int], rounds: int) -> dict[tuple[int, int], float]:
    """Median seconds by nodes and threads, in turns."""
    found: dict[tuple[int, int], list[float]] = {}
    for number in range(rounds + 1):  # the first warms up
        for nodes in NODES:
            for threads in counts:
                times = [passes.seconds(nodes, threads) for _ in range(5)]
                if number:
                    found.setdefault((nodes, threads), []).extend(times)
    return {key: median(times) for key, times in found.items()}


def opening_of(passes: Passes, nodes: int, seen: float | None) -> float:
    """Seconds that two threads lose where one phase ends and the next begins; 0 where no pass of
    two was timed.
    """
    phases = passes.traces(nodes, 2)
    shared = sum(len(tasks) > 1 for tasks in phases)
    return 0.0 if seen is None else max(0.0, seen - foretell(phases, 2).seconds) / shared


def _told(found: Foretold, nodes: int, threads: int, weight_bytes: int) -> dict[str, object]:
    told = {"nodes": nodes, "threads": threads, "foretold": found.seconds}
    rate = weight_bytes / found.seconds
    return {**told, **vars(found), "serial": found.serial, "bytes_per_second": rate}


def rows(output: Path) -> list[dict[str, str]]:
    """A line for each number of threads; the newest figures count."""
    found = []
    for (model, nodes), records in grouped(read(output), "model", "nodes").items():
        seen = {r["threads"]: r["seconds"] for r in records if "seconds" in r}
        told = {r["threads"]: r for r in records if "foretold" in r}
        alone = seen.get(1)
        for threads in sorted({*seen, *told}):
            row = {"model": model, "nodes": str(nodes), "threads": str(threads)}
            row |= _seen(seen.get(threads), alone)
            found.append({**row, **_simulated(told.get(threads), alone)})
    return found


def _seen(seconds: float | None, alone: float | None) -> dict[str, str]:
    if seconds is None:
        return {"seen": "", "over one": ""}
    ratio = f"{alone / seconds:.2f}" if alone else ""
    return {"seen": f"{1e3 * seconds:.2f} ms", "over one": ratio}


def _simulated(told: dict | None, alone: float | None) -> dict[str, str]:
    if told is None:
        return dict.fromkeys(("foretold", "then over one", "serial", "memory"), "")
    return {
        "foretold": f"{1e3 * told['foretold']:.2f} ms",
        "then over one": f"{alone / told['foretold']:.2f}" if alone else "",
        "serial": f"{100 * told['serial']:.0f} %",
        "memory": f"{told['bytes_per_second'] / 1e9:.0f} GB/s",
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("act", choices=("run", "show"))
    parser.add_argument("--models", default="smollm2-135m,tinyllama-1.1b", metavar="A,B,C")
    parser.add_argument("--threads", default="", metavar="A,B,C", help="[1, 2, 4 ... 8 x cores]")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--line", type=float, default=LINE, metavar="SECONDS")
    parser.add_argument("--output", type=Path, default=RECORDS)
    given = parser.parse_args()
    most = 8 * (os.cpu_count() or 1)
    usual = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    counts = [int(each) for each in given.threads.split(",") if each] or usual
    if given.act == "run":
        run(given.models.split(","), counts, given.rounds, given.line, given.output)
    print_table(rows(given.output), "### Passes by number of threads")


if __name__ == "__main__":
    main()
