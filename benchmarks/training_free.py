"""Block efficiency of the methods that need no second model, greedy, on prompts of every Spec-Bench category.

    python benchmarks/training_free.py run --output benchmarks/results/training_free.jsonl
    python benchmarks/training_free.py report benchmarks/results/training_free.jsonl
    python benchmarks/training_free.py ties benchmarks/results/training_free.jsonl --output ties.json

The data holds the even half of Spec-Bench. Results are appended prompt by prompt; a run that was stopped goes on.
"""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import track

import draftwood
from data import append_record, markdown, read_records, spec_bench
from draftwood import methods
from draftwood.checking import first_divergence
from draftwood.drafters import PromptLookup, TokenRecycling
from draftwood.drafters.token_recycling import published_tree
from draftwood.language_model import LanguageModel
from draftwood.methods import Method
from draftwood.verifiers import Match


def chosen_methods(lm: LanguageModel) -> dict[str, Method]:
    """What is measured; recycling both with a table of its own per request and with one that is carried over."""
    small = replace(published_tree(), budget=16)
    return {
        "plain": methods.build("plain", lm.model),
        "lookup": methods.build("lookup", lm.model),
        "lookup, 4 branches": Method(PromptLookup(branches=4), Match(), "lookup"),
        "recycling, 80 nodes": methods.build("recycling", lm.model),
        "recycling, 80 nodes, table kept": Method(TokenRecycling(keep=True), Match(), "recycling"),
        "recycling, 16 nodes": methods.build("recycling", lm.model, shape=small),
        **{name: lm.with_method(name).method for name in ("suffix", "stand", "aded", "auto")},
    }


def run(arguments: argparse.Namespace) -> None:
    path = Path(arguments.output)
    done = {(r["method"], r["question"], r["tokens"]) for r in read_records(path)}
    lm = draftwood.load(arguments.model, method="plain", dtype="bfloat16")
    questions = spec_bench(arguments.per_category)
    wanted = chosen_methods(lm)
    work = [(name, q) for name in wanted for q in questions if (name, q.number, arguments.tokens) not in done]
    texts = {r["question"]: r["token_ids"] for r in read_records(path) if r["method"] == "plain"}
    for name, question in track(work, console=Console(stderr=True), description="questions"):
        method = wanted[name]
        result = LanguageModel(lm.model, lm.tokenizer, method, lm.name).generate(
            question.text, max_new_tokens=arguments.tokens
        )
        texts.setdefault(question.number, result.token_ids)
        same = result.token_ids == texts[question.number]
        record = {"method": name, "question": question.number, "category": question.category}
        record |= {"tokens": arguments.tokens, "model": arguments.model, "same_as_plain": same}
        append_record(path, record | {"token_ids": result.token_ids, "stats": result.stats.as_json()})


def report(arguments: argparse.Namespace) -> None:
    records = [record for file in arguments.files for record in read_records(Path(file))]
    categories = list(dict.fromkeys(record["category"] for record in records))
    rows = []
    for method in dict.fromkeys(record["method"] for record in records):
        here = [record for record in records if record["method"] == method]
        same = sum(record["same_as_plain"] for record in here)
        groups = [[r for r in here if r["category"] == category] for category in categories]
        cells = [f"{efficiency(group):.2f}" if group else "" for group in groups]
        drafted = sum(r["stats"]["drafted"] for r in here) / max(1, sum(r["stats"]["target_runs"] for r in here))
        rows.append([method, f"{efficiency(here):.2f}", f"{drafted:.1f}", f"{same}/{len(here)}", *cells])
    print(markdown(["method", "tokens per run", "guesses per run", "same text", *categories], rows))


def ties(arguments: argparse.Namespace) -> None:
    """At the first place where a text departs from plain decoding, how close are the model's two likeliest tokens?"""
    records = read_records(Path(arguments.file))
    plain = {record["question"]: record["token_ids"] for record in records if record["method"] == "plain"}
    prompts = {question.number: question.text for question in spec_bench(40)}
    lm = draftwood.load(arguments.model, method="plain", dtype="bfloat16")
    found = []
    for record in track(records, console=Console(stderr=True), description="texts"):
        question = record["question"]
        place = first_divergence(lm.model, lm.encode(prompts[question]), plain[question], record["token_ids"])
        if place is not None:
            found.append({"method": record["method"], "question": question, **asdict(place)})
    Path(arguments.output).write_text(json.dumps(found, indent=1) + "\n")
    print_ties(argparse.Namespace(file=arguments.output))


def print_ties(arguments: argparse.Namespace) -> None:
    found = json.loads(Path(arguments.file).read_text())
    tied = [place for place in found if place["tie"]]
    spacings = [4 * place["margin"] / place["tolerance"] for place in found]
    print(
        f"{len(found)} texts depart from plain decoding somewhere; in {len(tied)} of them the two tokens tie within "
        f"rounding there.\nDistance of the model's two best logits at these places, in spacings of bfloat16: median "
        f"{median(spacings):.1f}, most {max(spacings):.1f}."
    )


def efficiency(records: list[dict]) -> float:
    """Tokens per run, pooled over prompts."""
    stats = [record["stats"] for record in records]
    return sum(s["tokens"] - 1 for s in stats) / max(1, sum(s["target_runs"] for s in stats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="measure what is not measured yet")
    runs.add_argument("--model", default="smollm2-135m")
    runs.add_argument("--per-category", type=int, default=2, help="questions of each of the 13 categories")
    runs.add_argument("--tokens", type=int, default=128)
    runs.add_argument("--output", required=True)
    runs.set_defaults(act=run)
    reports = commands.add_parser("report", help="print the table")
    reports.add_argument("files", nargs="+")
    reports.set_defaults(act=report)
    near = commands.add_parser("ties", help="look at the places where texts depart from plain decoding")
    near.add_argument("file")
    near.add_argument("--model", default="smollm2-135m")
    near.add_argument("--output", required=True)
    near.set_defaults(act=ties)
    shown = commands.add_parser("print-ties", help="print what `ties` found")
    shown.add_argument("file")
    shown.set_defaults(act=print_ties)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
