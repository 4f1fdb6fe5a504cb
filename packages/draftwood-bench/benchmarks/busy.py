"""Speed on a machine that is wanted elsewhere: beside busy loops, beside a second process, within a
quota of CPU time.

    make bench-busy
    python -m benchmarks.busy run --old ../other-checkout     # both in turns; are texts equal?
    python -m benchmarks.busy report benchmarks/results/busy.json

Every process loads its model once and answers when it is asked, so that all cases and both versions
take turns. The processes and the loops are of one session: else Linux would share out time by
sessions before it looks at niceness.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.common.processes import ROOT, Answer, Process, checkout, in_turns
from benchmarks.common.scripts import parser_of, print_table
from draftwood_bench.plan.prompts import BUILT_IN, load_prompts
from draftwood_bench.records.machine import processor

METHODS = ("plain", "auto")
LOOP = (sys.executable, "-S", "-c", "while True: pass")
QUOTA_GROUPS = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")  # of version 1 and 2


@contextlib.contextmanager
def loops(count: int, nice: int) -> Iterator[None]:
    """Keep as many busy loops running beside the body."""
    running = [subprocess.Popen(["nice", "-n", str(nice), *LOOP]) for _ in range(count)]
    time.sleep(0.3)
    try:
        yield
    finally:
        for loop in running:
            loop.kill()
            loop.wait()


@contextlib.contextmanager
def group_with_quota(cpus: float) -> Iterator[Path | None]:
    """A control group that is given so many CPUs; None where this user may make none."""
    for base in QUOTA_GROUPS:
        group = base / f"draftwood-busy-{os.getpid()}"
        old = (base / "cpu.cfs_quota_us").exists()
        try:
            group.mkdir()
            quota = group / ("cpu.cfs_quota_us" if old else "cpu.max")
            quota.write_text(str(int(cpus * 100_000)) if old else f"{int(cpus * 100_000)} 100000")
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        try:
            yield group
        finally:
            group.rmdir()
        return
    yield None


@dataclass
class Bench:
    """Speeds of every tree in every case.

    Attributes:
        found: (tree, case, method) to one entry per answer.
    """

    trees: dict[str, Path]
    model: str
    tokens: int
    prompt: str
    found: dict[tuple[str, str, str], list[Answer]] = field(default_factory=dict)

    def run(self, rounds: int, cases: Sequence[str], cpus: int) -> None:
        limited = "half a quota" in cases
        with group_with_quota(cpus / 2) if limited else contextlib.nullcontext() as group:
            first = {name: Process(tree, self.model) for name, tree in self.trees.items()}
            second = {
                name: Process(tree, self.model)
                for name, tree in self.trees.items()
                if "two processes" in cases
            }
            within = (
                {name: Process(tree, self.model, group) for name, tree in self.trees.items()}
                if group
                else {}
            )
            try:
                for turn in range(rounds + 1):  # the first warms up
                    for case in cases:
                        self._case(case, first, second, within, turn, cpus)
            finally:
                for process in (*first.values(), *second.values(), *within.values()):
                    process.close()

    def _case(
        self,
        case: str,
        first: dict[str, Process],
        second: dict[str, Process],
        within: dict[str, Process],
        turn: int,
        cpus: int,
    ) -> None:
        kind = {"nice loop": (1, 10), "nice loops": (cpus, 10), "equal loops": (cpus, 0)}
        with loops(*kind.get(case, (0, 0))):
            for method in METHODS:
                for tree in in_turns(self.trees, turn):
                    asked = [first[tree]]
                    if case == "two processes":
                        asked.append(second[tree])
                    if case == "half a quota":
                        asked = [within[tree]] if tree in within else []
                    with ThreadPoolExecutor(2) as pool:
                        waited = [
                            pool.submit(each.ask, method, 0.0, self.prompt, self.tokens)
                            for each in asked
                        ]
                        answers = [each.result() for each in waited]
                    if turn:
                        self.found.setdefault((tree, case, method), []).extend(answers)

    def rows(self) -> list[dict]:
        """Medians, and each speed as a share of the same tree's idle one."""
        rows = []
        for (tree, case, method), answers in self.found.items():
            if not answers:
                continue
            speed = median(answer.speed for answer in answers)
            idle = median(answer.speed for answer in self.found[tree, "idle", method])
            rows.append(
                {
                    "tree": tree,
                    "case": case,
                    "method": method,
                    "tokens_per_second": round(speed, 1),
                    "of_idle": round(speed / idle, 3),
                    "cpus_used": round(
                        median(answer.cpu_seconds / answer.seconds for answer in answers), 2
                    ),
                    "lowest": round(min(answer.speed for answer in answers), 1),
                    "highest": round(max(answer.speed for answer in answers), 1),
                    "answers": len(answers),
                }
            )
        return rows

    def texts_are_equal(self) -> bool:
        return len({answer.text for answers in self.found.values() for answer in answers}) == 1


CASES = ("idle", "nice loop", "nice loops", "equal loops", "two processes", "half a quota")


def run(arguments: argparse.Namespace) -> None:
    trees = {"new": ROOT}
    if arguments.old:
        trees["old"] = checkout(arguments.old)
    cpus = len(os.sched_getaffinity(0))
    (prompt,) = load_prompts(BUILT_IN, limit=1).prompts
    bench = Bench(trees, arguments.model, arguments.tokens, prompt.turns[0])
    cases = ["idle", *(case for case in arguments.cases.split(",") if case != "idle")]
    bench.run(arguments.rounds, cases, cpus)
    record = {
        "processor": processor(),
        "cpus": cpus,
        "kernel": os.uname().release,
        "model": arguments.model,
        "tokens": arguments.tokens,
        "rounds": arguments.rounds,
        "texts_are_equal": bench.texts_are_equal(),
        "rows": bench.rows(),
    }
    if arguments.json:
        print(json.dumps(record, indent=1))
    else:
        show(record)
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(record, indent=1) + "\n")


def show(record: dict) -> None:
    """Print the table of a record."""
    print_table(
        record["rows"],
        f"{record['model']}, {record['tokens']} tokens, medians of {record['rounds']} rounds in"
        f" turns; {record['processor']}, {record['cpus']} CPUs, Linux {record['kernel']}; all texts"
        f" equal: {'yes' if record['texts_are_equal'] else 'NO'}.",
    )


def report(arguments: argparse.Namespace) -> None:
    show(json.loads(Path(arguments.file).read_text()))


def main() -> None:
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="measure")
    runs.add_argument("--model", default="smollm2-135m")
    runs.add_argument("--tokens", type=int, default=96)
    runs.add_argument("--rounds", type=int, default=5)
    runs.add_argument("--cases", default=",".join(CASES), help="some of: " + ", ".join(CASES))
    runs.add_argument("--old", help="another checkout, measured in turns with this one")
    runs.add_argument("--json", action="store_true", help="print the record instead of a table")
    runs.add_argument("--output", help="a JSON file to keep the numbers in")
    runs.set_defaults(act=run)
    reports = commands.add_parser("report", help="print the table of a file")
    reports.add_argument("file")
    reports.set_defaults(act=report)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
