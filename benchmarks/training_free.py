"""Tables of results/training_free.jsonl: block efficiency of the methods that need no second model, greedy.

    python benchmarks/training_free.py report results/training_free.jsonl
    python benchmarks/training_free.py print-ties results/training_free_ties.json

The files were measured by an earlier form of this script, on the even half of Spec-Bench; `draftwood bench spec-bench`
does this now, ties included, see `make bench-spec`.
"""

import argparse
import json
from pathlib import Path
from statistics import median

from data import markdown, read_records


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
    reports = commands.add_parser("report", help="print the table")
    reports.add_argument("files", nargs="+")
    reports.set_defaults(act=report)
    shown = commands.add_parser("print-ties", help="print what `ties` found")
    shown.add_argument("file")
    shown.set_defaults(act=print_ties)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
