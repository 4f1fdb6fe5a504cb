"""A server with all threads beside replicas that share them.

    make bench-replicas
    python -m benchmarks.serving.replicas --rounds 3 --output benchmarks/results/replicas.json

Both are started in turns, warmed, and asked for texts of one length by one and by several streams
at once. Nobody is asked for a prompt twice. What is told is medians, with the lowest and highest.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.processes import in_turns
from benchmarks.common.scripts import print_table
from benchmarks.serving.load import at_once, body_of, spread_prompts
from benchmarks.serving.soak import start
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.plan.prompts import BUILT_IN, load_prompts
from draftwood_bench.records.machine import processor
from draftwood_bench.run.describe import commit

SHORT = 400  # characters of a prompt: it is decoding that is measured
Figures = dict[str, list[float]]


def ways(count: int, threads: int) -> dict[str, list[str]]:
    """Options of `draftwood serve`, by what they mean."""
    each = max(1, threads // count)
    told = f"{count} replicas, {each} thread{'s' * (each > 1)} each"
    return {
        f"one process, {threads} threads": ["--threads", str(threads)],
        told: ["--replicas", str(count), "--threads", str(each)],
    }


def measure(
    address: str, prompts: Sequence[Prompt], streams: Sequence[int], tokens: int, into: Figures
) -> None:
    """Ask for texts, by so many streams at once; adds tokens per second, by streams."""
    for prompt in load_prompts(BUILT_IN, limit=3).prompts:  # warms up
        at_once(address, [body_of(prompt.messages(()), 16)] * max(streams))
    taken = 0
    for count in streams:
        asked = prompts[taken : taken + count]
        taken += count
        bodies = [body_of(each.messages(()), tokens, ignore_eos=True) for each in asked]
        found = at_once(address, bodies)
        seconds = max(each.end for each in found) - min(each.sent for each in found)
        written = sum(each.chunks[-1][1] for each in found)
        into.setdefault(f"{count}", []).append(written / seconds)


def compare(given: argparse.Namespace) -> dict[str, Any]:
    """Figures of both, by streams."""
    streams = [int(count) for count in given.streams.split(",")]
    prompts = [each for each in spread_prompts(given.prompts) if len(each.turns[0]) <= SHORT]
    wanted, found = ways(given.replicas, given.threads), dict[str, Figures]()
    for turn in range(given.rounds):
        own = prompts[turn * sum(streams) : (turn + 1) * sum(streams)]
        if len(own) < sum(streams):
            raise SystemExit(f"{len(prompts)} prompts are too few for {given.rounds} rounds")
        for name in in_turns(wanted, turn):
            process, address = start(given.model, wanted[name])
            try:
                measure(address, own, streams, given.tokens, found.setdefault(name, {}))
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)
            print(f"round {turn}, {name}: {found[name]}", file=sys.stderr, flush=True)
    return {
        "model": given.model,
        "tokens": given.tokens,
        "rounds": given.rounds,
        "processor": processor(),
        "cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "commit": commit(),
        "command": " ".join(["python -m benchmarks.serving.replicas", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "tokens_per_second": found,
    }


def rows(record: dict[str, Any]) -> list[dict[str, str]]:
    """Cells of a table."""
    return [
        {
            "server": name,
            **{
                f"{count} streams": f"{median(values):.0f} ({min(values):.0f} to {max(values):.0f})"
                for count, values in figures.items()
            },
        }
        for name, figures in record["tokens_per_second"].items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    threads = len(os.sched_getaffinity(0))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--replicas", type=int, default=max(2, threads))
    parser.add_argument("--threads", type=int, default=threads, help="of all together")
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--tokens", type=int, default=128, help="of each text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", default="spec-bench")
    parser.add_argument("--output", type=Path, help="a JSON file to keep the numbers in")
    given = parser.parse_args()
    record = compare(given)
    print_table(rows(record), f"{given.model}, tokens per second of all streams together")
    if given.output is not None:
        given.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
