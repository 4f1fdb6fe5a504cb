"""First token and memory of a new process, beside llama.cpp's Python wheel on the same files.

    make bench-starting
    python -m benchmarks.starting run --models smollm2-135m --rounds 9
    python -m benchmarks.starting first --models smollm2-135m,MY_FOLDER --rounds 5
    python -m benchmarks.starting show

Each round starts a process of each system for each model, in turns; models are loaded once before,
so that files lie in the page cache and ours is a later load. A process imports its library, loads
the model, goes on with a prompt by one token and leaves; the clock runs from before it is started
to that token. `first` loads folders of floats in int8 (a built-in name means its weights in
bfloat16, converted before) with nothing packed yet, and once more with what that load packed; what
the first takes longer stands beside the bound, by gigabyte of weights. Nothing else should compute.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.json_lines import RESULTS, append, grouped, newest, read
from benchmarks.common.scripts import parser_of, print_table
from draftwood_bench.peers.environments import prepare
from draftwood_bench.records.machine import processor
from draftwood_bench.run.describe import commit

RECORDS, FIRST_LOADS = RESULTS / "starting.jsonl", RESULTS / "first-loads.jsonl"
MODELS = ("smollm2-135m", "gemma3-270m", "tinyllama-1.1b", "qwen2.5-coder-1.5b")
OURS, PEER = "draftwood", "llama.cpp"
PROMPT = "The capital of Australia is"
FLOATS = ("smollm2-135m",)
"""Models whose first loads are timed."""
MORE_SECONDS = 2.0
"""Most that a first load may take longer than later ones, by gigabyte."""

ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}
"""Environment of children, whose modules are compiled once, as an installation has them."""

DRAFTWOOD = """
import draftwood
from draftwood.native.threads import set_threads
set_threads({threads})
draftwood.load({model!r}, dtype={dtype!r}).generate({prompt!r}, max_new_tokens=1, raw=True)
"""
LLAMA_CPP = """
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup = {model!r}, 2048, 1, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = {threads}
server = xllamacpp.Server(params)
server.handle_completions({{"prompt": {prompt!r}, "max_tokens": 1, "temperature": 0}})
"""
END = """
import os
(peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("first token", int(peak) / 1024, flush=True)
os._exit(0)
"""


@dataclass(frozen=True)
class Started:
    """A process that gave its first token: seconds since before it was started, and peak memory."""

    seconds: float
    megabytes: float


def started(python: Path, program: str, environment: Mapping[str, str] = ENVIRONMENT) -> Started:
    """Run a program until its first token.

    Raises:
        SystemExit: where it gave none, with its last words.
    """
    since = time.perf_counter()
    child = subprocess.Popen(
        [str(python), "-c", program + END],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert child.stdout
    told = next((line for line in child.stdout if line.startswith("first token")), None)
    seconds = time.perf_counter() - since
    _, words = child.communicate()
    if told is None:
        raise SystemExit(f"no first token: {words[-500:]}")
    return Started(seconds, float(told.split()[-1]))


def file_of(model: str) -> Path:
    """The GGUF file that a built-in name stands for, in its folder here."""
    import draftwood

    folder = draftwood.load(model).calibration.folder
    found = sorted(folder.glob("*.gguf")) if folder else []
    if not found:
        raise SystemExit(f"{model} is no GGUF file here; name one that is")
    return found[0]


def run(models: Sequence[str], rounds: int, threads: int, output: Path) -> None:
    """Start processes in turns, and record each."""
    facts = {"threads": threads, "processor": processor(), "commit": commit()}
    files = {model: file_of(model) for model in models}
    peer = prepare("llama.cpp-wheel")
    for number in range(rounds):
        for model, file in files.items():
            for system, python, template, name in (
                (OURS, Path(sys.executable), DRAFTWOOD, model),
                (PEER, peer, LLAMA_CPP, str(file)),
            ):
                program = template.format(model=name, prompt=PROMPT, threads=threads, dtype=None)
                found = started(python, program)
                record = {"system": system, "model": model, "round": number, **vars(found)}
                append(output, {**record, **facts})
        print(f"round {number + 1} of {rounds}", flush=True)


@contextmanager
def nothing_packed() -> Iterator[dict[str, str]]:
    """An environment with a home of its own, which has all of the usual one but packed weights."""
    from draftwood.storage.home import home

    with tempfile.TemporaryDirectory() as folder:
        for each in home().glob("*"):
            if each.name != "packed":
                (Path(folder) / each.name).symlink_to(each)
        yield {**ENVIRONMENT, "DRAFTWOOD_HOME": folder}


def folder_of_floats(model: str) -> Path:
    """A model's folder; a built-in one is fetched and converted where it must be."""
    from draftwood.loading.hub import fetched

    return fetched(model, "bfloat16").absolute()


def first(models: Sequence[str], rounds: int, threads: int, output: Path) -> None:
    """Load each model twice in a home where nothing is packed, in turns, and record both.

    A round before the first one leaves curves and files in the page cache behind.
    """
    from draftwood.loading.folders import weight_bytes

    facts = {"threads": threads, "processor": processor(), "commit": commit()}
    folders = {model: folder_of_floats(model) for model in models}
    for number in range(rounds + 1):
        for model, folder in folders.items():
            program = DRAFTWOOD.format(
                model=str(folder), prompt=PROMPT, threads=threads, dtype="int8"
            )
            size = {"gigabytes": weight_bytes(folder) / 1e9}
            with nothing_packed() as environment:
                for load in ("first", "later"):
                    found = started(Path(sys.executable), program, environment)
                    told = {"load": load, "model": model, "round": number, **vars(found)}
                    if number:
                        append(output, {**told, **size, **facts})
        print(f"round {number} of {rounds}", flush=True)


def first_rows(output: Path) -> list[dict[str, str]]:
    """Medians by model of its newest run, and what a first load takes longer by gigabyte."""
    found = []
    for model, records in grouped(newest(read(output), "model"), "model").items():
        loads = grouped(records, "load")
        seconds = {load: median(r["seconds"] for r in each) for load, each in loads.items()}
        if {"first", "later"} <= seconds.keys():
            gigabytes = records[-1]["gigabytes"]
            more = (seconds["first"] - seconds["later"]) / gigabytes
            row = {"model": model, "weights": f"{gigabytes:.2f} GB"}
            row |= {f"{load} load": f"{seconds[load]:.2f} s" for load in ("first", "later")}
            row |= {"more by GB": f"{more:.2f} s", "at most": f"{MORE_SECONDS:.0f} s"}
            found.append(row)
    return found


def rows(started: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Medians by model of its newest run in records, and ours over the peer's."""
    found = []
    for model, records in grouped(newest(started, "model"), "model").items():
        own = {
            system: (median(r["seconds"] for r in each), median(r["megabytes"] for r in each))
            for system, each in grouped(records, "system").items()
        }
        if {OURS, PEER} <= own.keys():
            (seconds, megabytes), (others, their_megabytes) = own[OURS], own[PEER]
            row = {"model": model, "first token, s": f"{seconds:.2f}"}
            row |= {"llama.cpp's wheel, s": f"{others:.2f}", "ratio": f"{seconds / others:.2f}"}
            row |= {"memory, MB": f"{megabytes:.0f}"}
            found.append({**row, "llama.cpp's, MB": f"{their_megabytes:.0f}"})
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("act", choices=("run", "first", "show"))
    parser.add_argument("--models", metavar="A,B,C")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    measure, usual, file = (
        (first, FLOATS, FIRST_LOADS) if given.act == "first" else (run, MODELS, RECORDS)
    )
    if given.act != "show":
        models = given.models.split(",") if given.models else usual
        measure(models, given.rounds, given.threads, given.output or file)
    if given.act != "first":
        print_table(rows(read(given.output or RECORDS)), "### First token of a new process")
    if given.act == "first" or given.output is None:
        print_table(first_rows(given.output or FIRST_LOADS), "### First loads, with nothing packed")


if __name__ == "__main__":
    main()
