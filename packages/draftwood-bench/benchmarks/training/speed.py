"""CTC-drafter's own table, measured again: vanilla decoding, Medusa, Hydra, CTC and EAGLE, trained
on equal data, on MT-bench and GSM8K (Wen et al. 2024, arXiv:2412.00061, table 1).

    python -m benchmarks.training.speed run FOLDER --tokens 300000  # as `frames train` left it
    python -m benchmarks.training.speed show

Both sets are parts of Spec-Bench. Every method decodes a prompt before the next prompt comes, in
another order in each round; heads that FOLDER lacks are left out. Trees hold four nodes, the most
that pays on two cores; every head runs in C++. Seconds count decoding alone.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import draftwood
from benchmarks.common.json_lines import RESULTS, append, grouped, read
from benchmarks.common.scripts import parser_of, print_table
from benchmarks.common.turns import in_turn
from benchmarks.training.drafters import method_of
from benchmarks.training.frames import ARMS
from draftwood.heads.folder import load
from draftwood.text.language_model import LanguageModel
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.plan.prompts import load_prompts
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
HEADS = (  # arms of the ablation, and ways to read their frames
    ("medusa", ""),
    ("hydra", ""),
    ("linear, kl", ""),
    ("linear, kl, all", ""),
    ("ctc", "paper"),
    ("ctc", "prefix"),
    ("eagle-1", ""),
    ("eagle-3", ""),
)
TEMPERATURES = (0.0, 1.0)


def arms(folder: Path) -> dict[str, LanguageModel]:
    """The target, decoded by each method whose head is there.

    Raises:
        ValueError: where none is.
    """
    target = draftwood.load("smollm2-135m", method="plain")
    found = {"vanilla": target}
    known = {arm.name: arm for arm in ARMS}
    for name, search in HEADS:
        arm = known[name]
        if not arm.folder(folder).is_dir():
            continue
        method = method_of(arm, load(arm.folder(folder)), search, NODES, target.model)
        found[f"{name}, {search}" if search else name] = target.with_method(method)
    if len(found) == 1:
        raise ValueError(f"{folder} holds no head; python -m benchmarks.training.frames train")
    return found


def prompts() -> Iterator[tuple[str, Prompt]]:
    for name, (categories, count) in SETS.items():
        chosen = load_prompts("spec-bench", per_category=count, categories=categories)
        for prompt in chosen.prompts:
            yield name, prompt


def run(folder: Path, tokens: int, rounds: int) -> None:
    """Append what is not there yet of heads that so many tokens trained."""
    models = arms(folder)
    place = ("method", "prompt", "round", "temperature")
    done = {tuple(r[name] for name in place) for r in read(RECORDS) if r["data"] == tokens}
    for model in models.values():
        model.generate("What is a river?", max_new_tokens=16)
    plan = product(range(rounds), TEMPERATURES, enumerate(prompts()))
    for turn, temperature, (number, (dataset, prompt)) in plan:
        texts = set[str]()
        for name in in_turn(models, turn + number):
            if (name, prompt.id, turn, temperature) in done:
                continue
            made = models[name].generate(
                prompt.messages(()),
                max_new_tokens=NEW_TOKENS,
                temperature=temperature,
                seed=number,
                ignore_eos=True,
            )
            texts.add(made.text if not temperature else "")
            record = {
                "data": tokens,
                "method": name,
                "set": dataset,
                "prompt": prompt.id,
                "round": turn,
            }
            record |= {"temperature": temperature, "stats": made.stats.as_json()}
            append(RECORDS, {**record, "cpu": processor()})
        if len(texts) > 1:
            raise RuntimeError(f"texts of prompt {prompt.id} differ")


def tables() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Titles and rows by the tokens that trained the heads."""
    for tokens, found in sorted(grouped(read(RECORDS), "data").items()):
        yield f"{TITLE}, {tokens // 1000}k tokens", rows(found)


def rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """By method and set: tokens per forward pass and speed beside vanilla, with 95 % intervals."""
    cells = dict[tuple[str, str, float], list[Record]]()
    for place, found in grouped(records, "method", "set", "temperature").items():
        cells[place] = [
            blank(each["method"], prompt=each["prompt"], round=each["round"], stats=each["stats"])
            for each in found
        ]
    table = []
    for name in dict.fromkeys(name for name, *_ in cells if name != "vanilla"):
        row = {"method": name}
        for dataset, temperature in product(SETS, TEMPERATURES):
            own = cells[name, dataset, temperature]
            pairs = paired(own, cells["vanilla", dataset, temperature])
            emitted, ratio = block_efficiency(own), pooled_ratio(pairs, decoding)
            told = f"{emitted.value:.2f}, {ratio}" if emitted else ""
            row[f"{dataset}, T = {temperature:g}"] = told
        table.append(row)
    return table


def main() -> None:
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--tokens", type=int, required=True)
    running.add_argument("--rounds", type=int, default=3)
    commands.add_parser("show")
    given = parser.parse_args()
    if given.command == "run":
        run(given.folder, given.tokens, given.rounds)
    for title, found in tables():
        print_table(found, title)


TITLE = "CTC-drafter's table, measured again: tokens per pass, speed beside plain decoding"

if __name__ == "__main__":
    main()
