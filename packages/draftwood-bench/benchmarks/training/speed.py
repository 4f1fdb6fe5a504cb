"""CTC-drafter's own table, measured again: vanilla decoding, Medusa, Hydra and CTC, trained on
equal data, on MT-bench and GSM8K (Wen et al. 2024, arXiv:2412.00061, table 1).

    python -m benchmarks.training.speed run FOLDER     # FOLDER as `drafters.py train` left it
    python -m benchmarks.training.speed show

Both sets are parts of Spec-Bench. Every method decodes a prompt before the next prompt comes, in
another order in each round. Trees hold four nodes, the most that pays on two cores; the trained
heads run in PyTorch, so that their layers are priced alike. Seconds count decoding alone.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import draftwood
from benchmarks.common.json_lines import RESULTS, append, grouped, read
from benchmarks.common.processes import print_table
from draftwood.heads.folder import load
from draftwood.methods import build
from draftwood.shapes import BestFirst
from draftwood.text.language_model import LanguageModel
from draftwood_bench.plan.prompts import Prompt, load_prompts
from draftwood_bench.records.files import Record
from draftwood_bench.records.machine import processor
from draftwood_bench.records.statistics import block_efficiency, decoding, paired, pooled_ratio
from draftwood_bench.run.blank import blank

RECORDS = RESULTS / "drafters" / "speed.jsonl"
MT_BENCH = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)
SETS = {"MT-bench": (MT_BENCH, 3), "GSM8K": (("math_reasoning",), 12)}  # prompts of each category
NODES, NEW_TOKENS = 4, 96
HEADS = {"medusa": "medusa", "hydra": "hydra", "ctc": "ctc-layer-prefix+lk"}  # and their folders


def arms(folder: Path) -> dict[str, LanguageModel]:
    """The target, decoded by each method."""
    target = draftwood.load("smollm2-135m", method="plain")
    found = {"vanilla": target}
    for name, place in HEADS.items():
        shape = None if name == "ctc" else BestFirst(NODES, NODES, NODES)
        method = build(name, target.model, shape=shape, head=load(folder / place))
        if name == "ctc":
            drafter: Any = method.drafter
            method = replace(method, drafter=replace(drafter, nodes=NODES))
        found[name] = target.with_method(method)
    return found


def prompts() -> Iterator[tuple[str, Prompt]]:
    for name, (categories, count) in SETS.items():
        chosen = load_prompts("spec-bench", per_category=count, categories=categories)
        for prompt in chosen.prompts:
            yield name, prompt


def run(folder: Path, rounds: int) -> None:
    """Append what is not there yet."""
    models = arms(folder)
    done = {(r["method"], r["prompt"], r["round"]) for r in read(RECORDS)}
    for model in models.values():
        model.generate("What is a river?", max_new_tokens=16)
    for turn in range(rounds):
        for number, (dataset, prompt) in enumerate(prompts()):
            order = list(models)
            shift = (turn + number) % len(order)
            texts = {}
            for name in order[shift:] + order[:shift]:
                if (name, prompt.id, turn) in done:
                    continue
                made = models[name].generate(prompt.messages(()), max_new_tokens=NEW_TOKENS)
                texts[name] = made.text
                record = {"method": name, "set": dataset, "prompt": prompt.id, "round": turn}
                append(RECORDS, {**record, "stats": made.stats.as_json(), "cpu": processor()})
            if len(set(texts.values())) > 1:
                raise RuntimeError(f"texts of prompt {prompt.id} differ")
        print("round", turn, flush=True)


def rows() -> list[dict[str, str]]:
    """By method and set: tokens per forward pass and speed beside vanilla, with 95 % intervals."""
    cells = dict[tuple[str, str], list[Record]]()
    for place, found in grouped(read(RECORDS), "method", "set").items():
        cells[place] = [
            blank(each["method"], prompt=each["prompt"], round=each["round"], stats=each["stats"])
            for each in found
        ]
    table = []
    for name in dict.fromkeys(name for name, _ in cells):
        row = {"method": name}
        for dataset in SETS:
            own = cells[name, dataset]
            row[f"{dataset}, tokens per pass"] = str(block_efficiency(own))
            pairs = paired(own, cells["vanilla", dataset])
            row[f"{dataset}, speed"] = str(pooled_ratio(pairs, decoding))
        table.append(row)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--rounds", type=int, default=3)
    commands.add_parser("show")
    given = parser.parse_args()
    if given.command == "run":
        run(given.folder, given.rounds)
    print_table(rows(), TITLE)


TITLE = "The table of CTC-drafter, measured again"

if __name__ == "__main__":
    main()
