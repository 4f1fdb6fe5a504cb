"""Speed on a machine that is wanted elsewhere: beside busy loops, beside a second process, within a
quota of CPU time.

    make bench-busy
    python benchmarks/busy.py run --old ../other-checkout     # both in turns, and whether their
    texts are equal python benchmarks/busy.py report benchmarks/results/busy.json

Every process loads its model once and answers when it is asked, so that all cases and both versions
take turns. The processes and the loops are of one session: else Linux would share out time by
sessions before it looks at niceness.
"""

import argparse
import contextlib
import hashlib
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

from data import markdown

HERE = Path(__file__).resolve()
METHODS = ("plain", "auto")
PROMPT = "Write a short story about a lighthouse keeper who finds a letter in a bottle."
LOOP = (sys.executable, "-S", "-c", "while True: pass")
QUOTA_GROUPS = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")  # of version 1 and 2
# the same trees whatever else the machine does
CURVE = ((1, 8, 16, 64), (0.0030, 0.0045, 0.0073, 0.026))


def serve(arguments: argparse.Namespace) -> None:
    """Answer the requests on the standard input, one per line: a method and a number of tokens."""
    import draftwood
    from draftwood.costs.curve import Curve

    if arguments.group:
        (Path(arguments.group) / "cgroup.procs").write_text(str(os.getpid()))
    lm = draftwood.load(arguments.model, curve=Curve(*CURVE))
    ways = {"plain": lm.with_method("plain"), "auto": lm.with_method("auto")}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        method, tokens = json.loads(line)
        used, since = time.process_time(), time.perf_counter()
        answer = ways[method].generate(PROMPT, max_new_tokens=tokens, ignore_eos=True)
        seconds, cpu = time.perf_counter() - since, time.process_time() - used
        digest = hashlib.sha256(answer.text.encode()).hexdigest()[:12]
        print(
            json.dumps(
                {"speed": len(answer.token_ids) / seconds, "cpus": cpu / seconds, "text": digest}
            ),
            flush=True,
        )


class Speaker:
    """One process with a model in it."""

    def __init__(self, tree: Path, model: str, group: Path | None = None) -> None:
        command = [
            sys.executable,
            str(HERE),
            "serve",
            "--model",
            model,
            *(["--group", str(group)] if group else []),
        ]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._read()

    def ask(self, method: str, tokens: int) -> dict:
        assert self.process.stdin
        self.process.stdin.write(json.dumps([method, tokens]) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> dict:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a process ended: {self.process.args}")
        return json.loads(line)


@contextlib.contextmanager
def loops(count: int, nice: int) -> Iterator[None]:
    """So many busy loops beside what runs within."""
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
    found: dict[tuple[str, str, str], list[dict]] = field(default_factory=dict)

    def run(self, rounds: int, cases: Sequence[str], cpus: int) -> None:
        with group_with_quota(cpus / 2) as group:
            first = {name: Speaker(tree, self.model) for name, tree in self.trees.items()}
            second = {
                name: Speaker(tree, self.model)
                for name, tree in self.trees.items()
                if "two processes" in cases
            }
            within = (
                {name: Speaker(tree, self.model, group) for name, tree in self.trees.items()}
                if group
                else {}
            )
            try:
                for turn in range(rounds + 1):  # the first warms up
                    for case in cases:
                        self._case(case, first, second, within, turn, cpus)
            finally:
                for speaker in (*first.values(), *second.values(), *within.values()):
                    speaker.close()

    def _case(
        self,
        case: str,
        first: dict[str, Speaker],
        second: dict[str, Speaker],
        within: dict[str, Speaker],
        turn: int,
        cpus: int,
    ) -> None:
        nice = {"nice loops": 10, "equal loops": 0}.get(case)
        with loops(0 if nice is None else cpus, nice or 0):
            for method in METHODS:
                # whoever comes first is slower
                for tree in list(self.trees)[:: -1 if turn % 2 else 1]:
                    speakers = [first[tree]]
                    if case == "two processes":
                        speakers.append(second[tree])
                    if case == "half a quota":
                        speakers = [within[tree]] if tree in within else []
                    with ThreadPoolExecutor(2) as pool:
                        asked = [pool.submit(each.ask, method, self.tokens) for each in speakers]
                        answers = [each.result() for each in asked]
                    if turn:
                        self.found.setdefault((tree, case, method), []).extend(answers)

    def rows(self) -> list[dict]:
        """Medians, and each speed as a share of the same tree's idle one."""
        rows = []
        for (tree, case, method), answers in self.found.items():
            if not answers:
                continue
            speed = median(answer["speed"] for answer in answers)
            idle = median(answer["speed"] for answer in self.found[tree, "idle", method])
            rows.append(
                {
                    "tree": tree,
                    "case": case,
                    "method": method,
                    "tokens_per_second": round(speed, 1),
                    "of_idle": round(speed / idle, 3),
                    "cpus_used": round(median(answer["cpus"] for answer in answers), 2),
                    "lowest": round(min(answer["speed"] for answer in answers), 1),
                    "highest": round(max(answer["speed"] for answer in answers), 1),
                    "answers": len(answers),
                }
            )
        return rows

    def texts_are_equal(self) -> bool:
        return len({answer["text"] for answers in self.found.values() for answer in answers}) == 1


CASES = ("idle", "nice loops", "equal loops", "two processes", "half a quota")


def run(arguments: argparse.Namespace) -> None:
    trees = {"new": HERE.parents[1]}
    if arguments.old:
        trees["old"] = Path(arguments.old).resolve()
    cpus = len(os.sched_getaffinity(0))
    bench = Bench(trees, arguments.model, arguments.tokens)
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
    print(json.dumps(record, indent=1) if arguments.json else table(record))
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(record, indent=1) + "\n")


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def table(record: dict) -> str:
    head = (
        f"{record['model']}, {record['tokens']} tokens, medians of {record['rounds']} rounds in"
        f" turns; {record['processor']}, {record['cpus']} CPUs, Linux {record['kernel']}; all texts"
        f" equal: {'yes' if record['texts_are_equal'] else 'NO'}.\n\n"
    )
    names = (
        "tree",
        "case",
        "method",
        "tokens_per_second",
        "of_idle",
        "cpus_used",
        "lowest",
        "highest",
    )
    rows = [[row[name] for name in names] for row in record["rows"]]
    return head + markdown([name.replace("_", " ") for name in names], rows)


def report(arguments: argparse.Namespace) -> None:
    print(table(json.loads(Path(arguments.file).read_text())))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    server = commands.add_parser("serve", help="what each process does")
    server.add_argument("--model", required=True)
    server.add_argument("--group")
    server.set_defaults(act=serve)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
