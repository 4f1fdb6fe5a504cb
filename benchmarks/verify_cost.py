"""The verify-cost curve: what a run of the target over n nodes costs, on every path, at short and
long contexts.

python benchmarks/verify_cost.py run --models smollm2-135m tinyllama-1.1b --output
benchmarks/results/verify_cost.json python benchmarks/verify_cost.py growth --output
benchmarks/results/growth.json python benchmarks/verify_cost.py report
benchmarks/results/verify_cost.json
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import torch

from data import markdown
from draftwood.interfaces.model import Model
from draftwood.loading.hub import load_pretrained
from draftwood.models.native import NativeModel
from draftwood.models.transformers import TransformersModel
from draftwood.tree import DraftTree

NODES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 1024, 4096, 8000)
PATHS: dict[str, Callable[[object], Model]] = {
    "Transformers, bf16": lambda loaded: TransformersModel(loaded),  # type: ignore[arg-type]
    "native, bf16": lambda loaded: NativeModel(loaded),  # type: ignore[arg-type]
    "native, int8": lambda loaded: NativeModel(loaded, "int8"),  # type: ignore[arg-type]
}


def measure(
    models: Mapping[str, Model], prefix: int, sizes: tuple[int, ...], rounds: int
) -> dict[str, dict[str, float]]:
    """Median milliseconds by path and number of nodes; they take turns, so that a noisy moment
    hurts all alike.
    """
    sessions = {}
    for path, model in models.items():
        sessions[path] = model.start()
        for start in range(0, prefix, 512):
            sessions[path].extend(list(range(5, 5 + min(512, prefix - start))), keep="last")
    trees = {n: bushy(n) for n in sizes}
    times: dict[str, dict[int, list[float]]] = {path: {n: [] for n in sizes} for path in models}
    for turn in range(rounds + 1):
        for n, tree in trees.items():
            for path, session in sessions.items():
                # brings this path's weights back into the caches, as in decoding
                session.forward(tree)
                since = time.perf_counter()
                session.forward(tree)
                if turn:  # the first turn warms up
                    times[path][n].append((time.perf_counter() - since) * 1e3)
    for session in sessions.values():
        session.close()
    return {
        path: {str(n): round(median(values), 2) for n, values in rows.items()}
        for path, rows in times.items()
    }


def bushy(nodes: int) -> DraftTree:
    """A tree with two children for every node."""
    return DraftTree.of(
        [7 + node for node in range(nodes)], [-1] + [node // 2 for node in range(nodes - 1)]
    )


def run(arguments: argparse.Namespace) -> None:
    rows = []
    for name in arguments.models:
        loaded = load_pretrained(name, dtype="bfloat16").model
        models = {path: make(loaded) for path, make in PATHS.items()}
        times = measure(models, arguments.prefix, NODES, arguments.rounds)
        size = sum(
            parameter.numel() * parameter.element_size() for parameter in loaded.parameters()
        )
        rows.append(
            {"model": name, "prefix": arguments.prefix, "bytes": size, "milliseconds": times}
        )
        record = {"threads": torch.get_num_threads(), "torch": torch.__version__, "curves": rows}
        Path(arguments.output).write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))


def growth(arguments: argparse.Namespace) -> None:
    """Milliseconds of a run over one and over eight nodes, and bytes of the cache, as the context
    grows.
    """
    loaded = load_pretrained(arguments.model, dtype="bfloat16").model
    rows = []
    for context in CONTEXTS:
        models = {path: make(loaded) for path, make in PATHS.items()}
        times = measure(models, context, (1, 8), arguments.rounds)
        own = models["native, int8"]
        assert isinstance(own, NativeModel)
        rows.append({"context": context, "milliseconds": times, "cache_bytes": own.pool.bytes})
        record = {"model": arguments.model, "threads": torch.get_num_threads(), "rows": rows}
        Path(arguments.output).write_text(json.dumps(record, indent=1) + "\n")
    print(growth_table(record))


def table(record: dict) -> str:
    rows = []
    for row in record["curves"]:
        plain = row["milliseconds"]["Transformers, bf16"]
        for path, times in row["milliseconds"].items():
            name = f"{row['model']}, {path}"
            rows.append([f"{name}: ms", *(f"{times[str(n)]:.1f}" for n in NODES)])
            rows.append(["T(n)/T(1)", *(f"{times[str(n)] / times['1']:.2f}" for n in NODES)])
            if times is not plain:
                rows.append(
                    [
                        "Transformers / this",
                        *(f"{plain[str(n)] / times[str(n)]:.2f}" for n in NODES),
                    ]
                )
    return f"Threads: {record['threads']}.\n\n" + markdown(["nodes", *map(str, NODES)], rows)


def growth_table(record: dict) -> str:
    paths = list(PATHS)
    head = [
        "context",
        *(f"{path}: 1 node" for path in paths),
        *(f"{path}: 8 nodes" for path in paths),
        "cache, MB",
    ]
    rows = [
        [
            row["context"],
            *(f"{row['milliseconds'][path][n]:.1f}" for n in ("1", "8") for path in paths),
            f"{row['cache_bytes'] / 1e6:.0f}",
        ]
        for row in record["rows"]
    ]
    return markdown(head, rows)


def report(arguments: argparse.Namespace) -> None:
    record = json.loads(Path(arguments.file).read_text())
    print(table(record) if "curves" in record else growth_table(record))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="measure runs over 1 to 64 nodes")
    runs.add_argument("--models", nargs="+", default=["smollm2-135m"])
    runs.add_argument("--prefix", type=int, default=128, help="tokens before the tree")
    grows = commands.add_parser("growth", help="measure at contexts of 128 to 8000 tokens")
    grows.add_argument("--model", default="smollm2-135m")
    for command, act in ((runs, run), (grows, growth)):
        command.add_argument("--rounds", type=int, default=11)
        command.add_argument("--output", required=True)
        command.set_defaults(act=act)
    reports = commands.add_parser("report", help="print the table of a file")
    reports.add_argument("file")
    reports.set_defaults(act=report)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
