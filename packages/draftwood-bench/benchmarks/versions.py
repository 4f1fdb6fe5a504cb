"""Two versions of draftwood in turns: speed of methods on a real model, time of steps outside it.

    python -m benchmarks.versions --old ../other-checkout
    python -m benchmarks.versions --old ../other-checkout --cases "plain 0,auto 1" --rounds 9

Each version has one process that loads the model once and answers when it is asked, and both take
turns, so that a machine that slows down slows both. Every case tells the median over rounds of new
over old, and whether the texts are equal.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.common.processes import ROOT, Process, checkout, environment, in_turns
from benchmarks.common.scripts import parser_of, print_table
from draftwood_bench.plan.prompts import load_prompts

CASES = ("plain 0", "plain 1", "auto 0", "auto 1", "suffix 0", "suffix 1")
COMMAND = "from draftwood.cli.main import main; main()"


def overhead(tree: Path, steps: int) -> dict[str, float]:
    """Milliseconds a step outside forward passes, by case, as a checkout measures them itself."""
    with tempfile.TemporaryDirectory() as folder:
        asked = ["bench", "overhead", "--steps", str(steps), "--output", folder, "--json"]
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *asked],
            env=environment(tree),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(
            f"{tree} cannot measure overhead ({done.stderr.strip()[-200:]}); leave it out with"
            " --overhead-rounds 0"
        )
    return {_named(each): each["milliseconds"] for each in json.loads(done.stdout)["figures"]}


def run(arguments: argparse.Namespace) -> dict:
    """Per case the medians of both versions, and of their ratios round by round."""
    trees = {"old": checkout(arguments.old), "new": ROOT}
    found = load_prompts("spec-bench", per_category=1, limit=arguments.prompts)
    prompts = [prompt.turns[0] for prompt in found.prompts]
    versions = {name: Process(tree, arguments.model) for name, tree in trees.items()}
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
                    for name in in_turns(versions, turn + number):
                        answer = versions[name].ask(
                            method, float(temperature), prompt, arguments.tokens
                        )
                        spent[name] += answer.seconds
                        tokens[name] += answer.tokens
                        texts.add(answer.text)
                    equal &= len(texts) == 1
                if turn:
                    for name in versions:
                        speeds[name].append(tokens[name] / spent[name])
            rows.append(_row(case + " tok/s", speeds, equal))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    finally:
        for version in versions.values():
            version.close()
    if arguments.overhead_rounds:
        rows += _overheads(trees, arguments)
    return {"rounds": arguments.rounds, "tokens": arguments.tokens, "rows": rows}


def _overheads(trees: dict[str, Path], arguments: argparse.Namespace) -> list[dict]:
    found: dict[str, dict[str, list[float]]] = {}
    for turn in range(arguments.overhead_rounds):
        for name in in_turns(trees, turn):
            for case, value in overhead(trees[name], arguments.steps).items():
                found.setdefault(case, {each: [] for each in trees})[name].append(value)
    known = {case: values for case, values in found.items() if all(values.values())}
    return [_row(case + " ms", values, None) for case, values in known.items()]


def _named(figure: dict) -> str:
    where = "" if figure["at"] == "default" else f", {figure['at']}"
    return f"{figure['method']} {figure['temperature']:g}{where}"


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
    parser = parser_of(__doc__)
    parser.add_argument("--old", required=True, help="another checkout")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--cases", default=",".join(CASES), help="methods with temperatures")
    parser.add_argument("--prompts", type=int, default=6, help="of Spec-Bench, one a category")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--overhead-rounds", type=int, default=5, help="0 leaves them out")
    parser.add_argument("--steps", type=int, default=100, help="of each case of overhead")
    parser.add_argument("--json", action="store_true", help="print the record instead of a table")
    arguments = parser.parse_args()
    record = run(arguments)
    if arguments.json:
        print(json.dumps(record, indent=1))
    else:
        title = f"{arguments.model}, {arguments.tokens} tokens, {arguments.rounds} rounds in turns"
        print_table(record["rows"], title)


if __name__ == "__main__":
    main()
