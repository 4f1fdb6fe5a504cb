"""Greedy identity on the real model: every pair of tree and rule writes what plain decoding writes,
in float32.

    python benchmarks/identity.py run --output benchmarks/results/identity.jsonl
    python benchmarks/identity.py report benchmarks/results/identity.jsonl

Drafts come from prompt lookup, token recycling, and from the model itself without some of its
layers, grown into every shape and judged by every verifier that is exact for it. Results are
appended pair by pair; a stopped run goes on.
"""

import argparse
from pathlib import Path

from rich.console import Console
from rich.progress import track

import draftwood
from data import append_record, markdown, read_records, spec_bench
from draftwood.bench.records.files import renamed
from draftwood.drafters import LayerSkip, PromptLookup, TokenRecycling
from draftwood.drafters.layer_skip import middle_layers
from draftwood.engine import Decoding, Options, generate_batch
from draftwood.methods import Method, build
from draftwood.shapes import BestFirst, Independent, Paths, Sequoia, Shape, StochasticBeam, Widths
from draftwood.stats import Stats, Step
from draftwood.text.language_model import LanguageModel
from draftwood.verifiers import Block, GreedyPlusOne, KSeq, Match, Rejection, Traversal

SHAPES: list[Shape] = [
    Widths((1, 1, 1)),
    Widths((2, 2)),
    Widths((2, 2), "independent"),
    Widths((3, 2), "greedy-plus-one"),
    Independent(3, 2),
    StochasticBeam(3, 2),
    Paths(((0,), (1,), (0, 0), (0, 1))),
    BestFirst(2, 2, 4),
    Sequoia(budget=5, max_depth=2),
]
VERIFIERS = [Match(), Rejection(), KSeq(), GreedyPlusOne(), Traversal(), Block()]


def pairs(layers: int) -> dict[str, Method]:
    """Every allowed pair, by a printable name."""
    skipped = middle_layers(layers)
    found = {
        "prompt lookup, match": Method(PromptLookup(branches=3), Match()),
        "token recycling, match": Method(TokenRecycling(), Match()),
    }
    for shape in SHAPES:
        for verifier in VERIFIERS:
            chain = shape == SHAPES[0]
            if shape.draw in verifier.exact_for and (chain or not isinstance(verifier, Block)):
                found[f"{shape}, {verifier.name}"] = Method(LayerSkip(skipped, shape), verifier)
    return found


def write(
    lm: LanguageModel, method: Method, prompts: list[list[int]], tokens: int
) -> tuple[list[list[int]], Stats]:
    """Greedy texts of all prompts, which share the model's runs."""
    options = Options(max_new_tokens=tokens)
    decodings = [
        Decoding(lm.model, method.drafter, method.verifier, prompt, options) for prompt in prompts
    ]
    texts: list[list[int]] = [[] for _ in prompts]
    steps: list[Step] = []
    for number, step in generate_batch(decodings):
        texts[number] += step.tokens
        steps.append(step)
    return texts, Stats.of(steps)


def run(arguments: argparse.Namespace) -> None:
    path = Path(arguments.output)
    lm = draftwood.load(arguments.model, method="plain", dtype="float32")
    encoded = [lm.encode(question.text) for question in spec_bench(40)]
    fitting = [prompt for prompt in encoded if len(prompt) <= arguments.longest]
    prompts = fitting[:: max(1, len(fitting) // arguments.prompts)][: arguments.prompts]
    plain, _ = write(lm, build("plain", lm.model), prompts, arguments.tokens)
    done = {renamed(record["pair"]) for record in read_records(path)}
    work = {name: method for name, method in pairs(lm.model.layers).items() if name not in done}
    for name, method in track(
        work.items(), console=Console(stderr=True), description="pairs", total=len(work)
    ):
        texts, stats = write(lm, method, prompts, arguments.tokens)
        same = sum(text == own for text, own in zip(texts, plain, strict=True))
        record = {"pair": name, "same": same, "prompts": len(prompts), "tokens": arguments.tokens}
        append_record(
            path, record | {"model": arguments.model, "dtype": "float32", "stats": stats.as_json()}
        )
    raise SystemExit(report(argparse.Namespace(files=[path])))


def report(arguments: argparse.Namespace) -> int:
    """Prints the table; 1 if any text differs from plain decoding."""
    records = [record for file in arguments.files for record in read_records(Path(file))]
    rows = [
        [
            r["pair"],
            f"{r['same']} of {r['prompts']}",
            f"{r['stats']['block_efficiency']:.2f}",
            r["stats"]["drafted"],
        ]
        for r in records
    ]
    print(
        markdown(
            ["drafts and verifier", "texts the same", "tokens per run", "tokens drafted"], rows
        )
    )
    different = sum(record["prompts"] - record["same"] for record in records)
    texts = sum(record["prompts"] for record in records)
    print(
        f"\n{len(records)} pairs, {texts} texts, {different} of them different from plain decoding."
    )
    return 1 if different else 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="compare what is not compared yet")
    runs.add_argument("--model", default="smollm2-135m")
    runs.add_argument("--prompts", type=int, default=20)
    runs.add_argument("--longest", type=int, default=120, help="most tokens of a prompt")
    runs.add_argument("--tokens", type=int, default=64)
    runs.add_argument("--output", required=True)
    runs.set_defaults(act=run)
    reports = commands.add_parser("report", help="print the table")
    reports.add_argument("files", nargs="+")
    reports.set_defaults(act=report)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
