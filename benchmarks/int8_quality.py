"""What 8-bit products do to a model: perplexity, and divergence from the same weights in float32.

python benchmarks/int8_quality.py run --output benchmarks/results/int8_quality.json
python benchmarks/int8_quality.py report benchmarks/results/int8_quality.json
"""

import argparse
import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.progress import track

from data import folder, markdown
from draftwood.interfaces.model import Model
from draftwood.loading.hub import load_pretrained
from draftwood.models.native import NativeModel

TYPES = ("float32", "bfloat16", "int8")


def windows(tokens: list[int], length: int, count: int) -> Iterator[list[int]]:
    """Pieces of a text, spread evenly over it."""
    step = (len(tokens) - length) // count
    for number in range(count):
        yield tokens[number * step : number * step + length]


def logprobs(model: Model, tokens: list[int]) -> torch.Tensor:
    session = model.start()
    logits = session.extend(tokens).logits
    session.close()
    return logits.double().log_softmax(-1)


def run(arguments: argparse.Namespace) -> None:
    path = folder() / "wikitext2_raw" / "wiki.test.raw.gz"
    loaded = {name: load_pretrained(arguments.model, dtype=name) for name in TYPES[:2]}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        tokens = loaded["float32"].tokenizer(file.read())["input_ids"]
    models: dict[str, Model] = {name: NativeModel(loaded[name].model) for name in TYPES[:2]}
    models["int8"] = NativeModel(loaded["bfloat16"].model, "int8")
    sums = {name: {"loss": 0.0, "divergence": 0.0, "same": 0.0} for name in TYPES}
    seen = 0
    for window in track(list(windows(tokens, arguments.length, arguments.windows)), "windows"):
        exact = logprobs(models["float32"], window)
        following = torch.tensor(window[1:])
        seen += len(following)
        for name in TYPES:
            got = exact if name == "float32" else logprobs(models[name], window)
            rows = sums[name]
            rows["loss"] -= got[:-1].gather(1, following[:, None]).sum().item()
            rows["divergence"] += (exact[:-1].exp() * (exact[:-1] - got[:-1])).sum().item()
            rows["same"] += (exact[:-1].argmax(-1) == got[:-1].argmax(-1)).sum().item()
    record = {
        "model": arguments.model,
        "tokens": seen,
        "window": arguments.length,
        "types": {
            name: {
                "perplexity": math.exp(rows["loss"] / seen),
                "divergence": rows["divergence"] / seen,
                "same_likeliest": rows["same"] / seen,
            }
            for name, rows in sums.items()
        },
    }
    Path(arguments.output).write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))


def table(record: dict) -> str:
    head = [
        "multiplied in",
        "perplexity",
        "KL from float32, nats per token",
        "same likeliest token",
    ]
    rows = [
        [
            name,
            f"{row['perplexity']:.3f}",
            f"{row['divergence']:.5f}",
            f"{row['same_likeliest']:.2%}",
        ]
        for name, row in record["types"].items()
    ]
    return (
        f"{record['model']}, {record['tokens']} tokens in windows of {record['window']}.\n\n"
        + markdown(head, rows)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="measure")
    runs.add_argument("--model", default="smollm2-135m")
    runs.add_argument("--length", type=int, default=512, help="tokens of a window")
    runs.add_argument("--windows", type=int, default=64)
    runs.add_argument("--output", required=True)
    runs.set_defaults(act=run)
    reports = commands.add_parser("report", help="print the table of a file")
    reports.add_argument("file")
    reports.set_defaults(
        act=lambda arguments: print(table(json.loads(Path(arguments.file).read_text())))
    )
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
