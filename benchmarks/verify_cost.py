"""The verify-cost curve: what a run of the target over n nodes costs against a run over one.

python benchmarks/verify_cost.py run --models smollm2-135m tinyllama-1.1b --output benchmarks/results/verify_cost.json
python benchmarks/verify_cost.py report benchmarks/results/verify_cost.json
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch

from data import markdown
from draftwood.models.hub import load_pretrained
from draftwood.models.transformers import TransformersModel
from draftwood.tree import DraftTree

NODES = (1, 2, 4, 8, 16, 32, 64)


def curve(name: str, dtype: str | None, prefix: int, rounds: int) -> dict[str, object]:
    """Median milliseconds by number of nodes; the sizes take turns, so that a noisy moment hurts all alike."""
    loaded = load_pretrained(name, dtype=dtype)
    model = TransformersModel(loaded.model)
    session = model.start()
    session.extend(list(range(5, 5 + prefix)))
    trees = {n: DraftTree.of([7] * n, [-1] + [0] * (n - 1)) for n in NODES}
    times: dict[int, list[float]] = {n: [] for n in NODES}
    for turn in range(rounds + 1):
        for n, tree in trees.items():
            since = time.perf_counter()
            session.forward(tree)
            if turn:  # the first turn warms up
                times[n].append((time.perf_counter() - since) * 1e3)
    size = sum(parameter.numel() * parameter.element_size() for parameter in loaded.model.parameters())
    medians = {str(n): round(median(values), 2) for n, values in times.items()}
    return {"model": name, "dtype": str(loaded.model.dtype), "prefix": prefix, "bytes": size, "milliseconds": medians}


def run(arguments: argparse.Namespace) -> None:
    rows = [curve(name, arguments.dtype, arguments.prefix, arguments.rounds) for name in arguments.models]
    record = {"threads": torch.get_num_threads(), "torch": torch.__version__, "curves": rows}
    Path(arguments.output).write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))


def table(record: dict) -> str:
    rows = []
    for row in record["curves"]:
        times = row["milliseconds"]
        name = f"{row['model']}, {row['dtype'].removeprefix('torch.')}"
        rows.append([f"{name}: ms", *(f"{times[str(n)]:.1f}" for n in NODES)])
        rows.append([f"{name}: T(n)/T(1)", *(f"{times[str(n)] / times['1']:.2f}" for n in NODES)])
    return f"Threads: {record['threads']}.\n\n" + markdown(["nodes", *map(str, NODES)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="measure")
    runs.add_argument("--models", nargs="+", default=["smollm2-135m"])
    runs.add_argument("--dtype")
    runs.add_argument("--prefix", type=int, default=128, help="tokens before the tree")
    runs.add_argument("--rounds", type=int, default=15)
    runs.add_argument("--output", required=True)
    runs.set_defaults(act=run)
    reports = commands.add_parser("report", help="print the table of a file")
    reports.add_argument("file")
    reports.set_defaults(act=lambda arguments: print(table(json.loads(Path(arguments.file).read_text()))))
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
