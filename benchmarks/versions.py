"""Two versions of draftwood in turns: speed of methods on a real model, time of steps outside it.

    python benchmarks/versions.py --old ../other-checkout
    python benchmarks/versions.py --old ../other-checkout --cases "plain 0,auto 1" --rounds 9

Each version has one process that loads the model once and answers when it is asked, and both take
turns, so that a machine that slows down slows both. Every case tells the median over rounds of new
over old, and whether the texts are equal. Trees are chosen by one given curve of costs: the same
trees whatever the machine does.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from data import markdown, spec_bench

HERE = Path(__file__).resolve()
CURVE = ((1, 8, 16, 64), (0.0030, 0.0045, 0.0073, 0.026))
CASES = ("plain 0", "plain 1", "auto 0", "auto 1", "suffix 0", "suffix 1")


def serve(arguments: argparse.Namespace) -> None:
    """Answer requests on the standard input, one a line: method, temperature, prompt, tokens."""
    import draftwood
    from draftwood.costs.curve import Curve

    lm = draftwood.load(arguments.model, curve=Curve(*CURVE))
    ways: dict = {}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        method, temperature, prompt, tokens = json.loads(line)
        if method not in ways:
            ways[method] = lm.with_method(method)
        since = time.perf_counter()
        answer = ways[method].generate(
            prompt, max_new_tokens=tokens, temperature=temperature, seed=0, ignore_eos=True
        )
        seconds, stats = time.perf_counter() - since, answer.stats.as_json()
        found = {
            "seconds": seconds,
            "tokens": len(answer.token_ids),
            "model_seconds": stats.get("seconds", {}).get("model"),
            "text": hashlib.sha256(answer.text.encode()).hexdigest()[:12],
        }
        print(json.dumps(found), flush=True)


class Version:
    """A checkout, and a process that answers in its name."""

    def __init__(self, tree: Path, model: str) -> None:
        self.tree = tree
        command = [sys.executable, str(HERE), "--serve", "--model", model]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(tree),
        )
        self._read()

    def ask(self, *request: object) -> dict:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._read()

    def overhead(self, steps: int) -> dict[str, float]:
        """Milliseconds a step outside model runs, by case, from this checkout's own script."""
        command = [sys.executable, str(self.tree / "benchmarks" / "overhead.py"), "run"]
        done = subprocess.run(
            [*command, "--steps", str(steps)],
            env=_environment(self.tree),
            capture_output=True,
            text=True,
            check=True,
        )
        cases = json.loads(done.stdout.splitlines()[-1])["cases"]
        return {name: case["milliseconds"] for name, case in cases.items()}

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> dict:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the process of {self.tree} ended")
        return json.loads(line)


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONWARNINGS": "ignore"}


def run(arguments: argparse.Namespace) -> dict:
    """Per case the medians of both versions, and of their ratios round by round."""
    trees = {"old": Path(arguments.old).resolve(), "new": HERE.parents[1]}
    versions = {name: Version(tree, arguments.model) for name, tree in trees.items()}
    prompts = [question.text for question in spec_bench(1)][: arguments.prompts]
    rows = []
    try:
        for case in arguments.cases.split(","):
            method, temperature = case.rsplit(" ", 1)
            speeds: dict[str, list[float]] = {name: [] for name in versions}
            equal = True
            for turn in range(arguments.rounds + 1):  # the first warms up
                spent = dict.fromkeys(versions, 0.0)
                tokens = dict.fromkeys(versions, 0)
                for number, prompt in enumerate(prompts):
                    texts = set()
                    for name in list(versions)[:: -1 if (turn + number) % 2 else 1]:
                        answer = versions[name].ask(
                            method, float(temperature), prompt, arguments.tokens
                        )
                        spent[name] += answer["seconds"]
                        tokens[name] += answer["tokens"]
                        texts.add(answer["text"])
                    equal &= len(texts) == 1
                if turn:
                    for name in versions:
                        speeds[name].append(tokens[name] / spent[name])
            rows.append(_row(case + " tok/s", speeds, equal))
            print(json.dumps(rows[-1]), flush=True)
        if arguments.overhead_rounds:
            rows += _overheads(versions, arguments)
    finally:
        for version in versions.values():
            version.close()
    return {"rounds": arguments.rounds, "tokens": arguments.tokens, "rows": rows}


def _overheads(versions: dict[str, Version], arguments: argparse.Namespace) -> list[dict]:
    found: dict[str, dict[str, list[float]]] = {}
    for turn in range(arguments.overhead_rounds):
        for name in list(versions)[:: -1 if turn % 2 else 1]:
            for case, value in versions[name].overhead(arguments.steps).items():
                found.setdefault(case, {each: [] for each in versions})[name].append(value)
    return [_row(case + " ms", values, None) for case, values in found.items()]


def _row(case: str, values: dict[str, list[float]], equal: bool | None) -> dict:
    ratios = [new / old for old, new in zip(values["old"], values["new"], strict=True)]
    return {
        "case": case,
        "old": round(median(values["old"]), 3),
        "new": round(median(values["new"]), 3),
        "new over old": round(median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
        "texts equal": {True: "yes", False: "NO", None: ""}[equal],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", help="another checkout")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--cases", default=",".join(CASES), help="methods with temperatures")
    parser.add_argument("--prompts", type=int, default=6, help="of Spec-Bench, one a category")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--overhead-rounds", type=int, default=5, help="0 leaves them out")
    parser.add_argument("--steps", type=int, default=100, help="of each case of overhead")
    parser.add_argument("--json", action="store_true", help="print the record instead of a table")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments)
    if not arguments.old:
        parser.error("--old names the other checkout")
    record = run(arguments)
    if arguments.json:
        print(json.dumps(record, indent=1))
    else:
        print(markdown(list(record["rows"][0]), [list(row.values()) for row in record["rows"]]))


if __name__ == "__main__":
    main()
