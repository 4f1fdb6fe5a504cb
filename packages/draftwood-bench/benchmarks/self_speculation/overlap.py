"""Measure what drafting while the target runs gains, and what sharing the cores costs.

    python -m benchmarks.self_speculation.overlap run --pair tinyllama    # appends to --output
    python -m benchmarks.self_speculation.overlap run --pair smollm2 --arms plain,turns,1+1
    python -m benchmarks.self_speculation.overlap --show                   # the tables, in Markdown

Every way decodes a prompt before the next prompt comes, in another order in each round. `turns`
drafts and runs in turns, each with all threads; `1+1` overlaps both with a thread for each, and
runs roots by themselves where that pays; `1+1 pre-verify` does so wherever no tree is ready; `2+1`
gives the target both threads all the same. Texts of a prompt and seed are compared: the run ends
where two differ. Seconds count decoding alone. Shares and ratios are pooled over prompts, with
bootstrap 95 % intervals over prompts.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.json_lines import RESULTS, append, read
from benchmarks.common.scripts import parser_of, print_table
from benchmarks.common.turns import in_turn
from draftwood import methods
from draftwood.engine import Overlap
from draftwood.model_set import ModelSet
from draftwood.shapes import Shape, Widths
from draftwood.text.language_model import LanguageModel
from draftwood.verifiers import Match, Rejection
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.plan.prompts import load_prompts
from draftwood_bench.records.files import Record
from draftwood_bench.records.machine import processor
from draftwood_bench.records.statistics import (
    Estimate,
    block_efficiency,
    decoding,
    estimate,
    paired,
    pooled_ratio,
)
from draftwood_bench.run.blank import blank

RECORDS = RESULTS / "overlap.jsonl"
PAIRS = {
    "tinyllama": ("tinyllama-1.1b", "stories-15m", "speculative", "stories"),
    "smollm2": ("smollm2-135m", "smollm2-135m-lm", "lm-rsd", "spec-bench"),
}
"""Target, draft model or trained drafter, method, prompts."""

OVERLAPS: dict[str, Overlap | None] = {
    "turns": None,
    "1+1": Overlap(target_threads=1),
    "1+1 post-verify": Overlap(target_threads=1, pre_verify="never"),
    "1+1 pre-verify": Overlap(target_threads=1, pre_verify="always"),
    "1+1 one outcome": Overlap(target_threads=1, outcomes=1),
    "2+1": Overlap(target_threads=2),
}
USUAL = ("plain", "turns", "1+1", "1+1 pre-verify", "2+1")
CHAIN = Widths((1, 1, 1, 1))


def arms(pair: str, names: Sequence[str], shape: Shape) -> dict[str, LanguageModel]:
    """The target, decoded in each way."""
    target_name, drafter_name, method, _ = PAIRS[pair]
    models = ModelSet.load(target_name, draft_model=drafter_name)
    plain = LanguageModel.of(models, "plain")
    found = {}
    for name in names:
        if name == "plain":
            found[name] = plain
            continue
        overlap = OVERLAPS[name] or False
        found[name] = with_shape(plain, method, shape, overlap)
    return found


def with_shape(
    plain: LanguageModel, method: str, shape: Shape, overlap: bool | Overlap
) -> LanguageModel:
    """A method whose drafter grows another tree."""
    recipe = methods.recipe(method)
    own = methods.MethodSpec(
        *(recipe.name, recipe.summary, recipe.source, recipe.drafter, shape),
        Rejection() if shape.draw != "chosen" else Match(),
        recipe.otherwise,
    )
    return plain.with_method(own, overlap=overlap)


def given(lm: LanguageModel, prompt: Prompt) -> Any:
    """Prompt to continue: a conversation, or the first tokens of a text."""
    if prompt.first_tokens is None:
        return prompt.messages(())
    return lm.encode(prompt.turns[0], raw=True)[: prompt.first_tokens]


def run(asked: argparse.Namespace) -> None:
    """Append what is not there yet."""
    shape = Widths(tuple(int(width) for width in asked.widths.split("-")))
    models = arms(asked.pair, asked.arms.split(","), shape)
    keys = ("pair", "widths", "arm", "temperature", "prompt", "round")
    done = {tuple(each[key] for key in keys) for each in read(asked.output)}
    chosen = load_prompts(PAIRS[asked.pair][3], limit=asked.prompts).prompts
    for model in models.values():
        model.generate("What is a river?", max_new_tokens=16)
    for turn in range(asked.rounds):
        for number, prompt in enumerate(chosen):
            texts = dict[str, list[int]]()
            for name in in_turn(models, turn + number):
                facts = (asked.pair, asked.widths, name, asked.temperature, prompt.id, turn)
                if facts in done:
                    continue
                made = models[name].generate(
                    given(models[name], prompt),
                    max_new_tokens=asked.tokens,
                    temperature=asked.temperature,
                    seed=number,
                )
                texts[name] = made.token_ids
                append(
                    asked.output,
                    {
                        **dict(zip(keys, facts, strict=True)),
                        "stats": made.stats.as_json(),
                        "threads": torch.get_num_threads(),
                        "cpu": processor(),
                    },
                )
            require_same(texts, prompt, asked.temperature)
        print("round", turn, flush=True)


def require_same(texts: Mapping[str, list[int]], prompt: Prompt, temperature: float) -> None:
    """Refuse to go on where overlap changed a text; drawn ones differ from plain decoding's."""
    alike = [text for name, text in texts.items() if name != "plain" or temperature == 0]
    if any(text != alike[0] for text in alike):
        raise RuntimeError(f"texts of prompt {prompt.id} differ")


def hidden(record: Record) -> tuple[float, float] | None:
    """Seconds of drafting that fell into passes of the target, and all of them."""
    drafting = record.stats.get("drafting")
    return (drafting["hidden"], drafting["seconds"]) if drafting else None


def kept(record: Record) -> tuple[float, float] | None:
    """Passes whose outcome a tree was drafted ahead for, and passes while trees were."""
    drafting = record.stats.get("drafting")
    return (drafting["kept"], drafting["ahead"]) if drafting and drafting["ahead"] else None


def rows(records: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """By pair, tree, temperature and way: tokens per pass, speed, and what was hidden."""
    groups: dict[tuple[str, str, float], dict[str, list[Record]]] = {}
    for each in records:
        facts = {name: each[name] for name in ("prompt", "round", "stats", "temperature")}
        group = groups.setdefault((each["pair"], each["widths"], each["temperature"]), {})
        group.setdefault(each["arm"], []).append(blank(each["arm"], **facts))
    table = []
    for (pair, widths, temperature), found in groups.items():
        for name in [name for name in ("plain", *OVERLAPS) if name in found]:
            own = found[name]
            table.append(
                {
                    **{"pair": pair, "chain or tree": widths, "temperature": str(temperature)},
                    "way": name,
                    "prompts": str(len({record.prompt for record in own})),
                    "tokens per pass": told(block_efficiency(own)),
                    "speed over plain": told(speed(own, found.get("plain", []))),
                    "speed over turns": told(speed(own, found.get("turns", []))),
                    "drafting hidden": told(estimate(own, hidden)),
                    "outcomes foreseen": told(estimate(own, kept)),
                }
            )
    return table


def speed(own: Sequence[Record], other: Sequence[Record]) -> Estimate | None:
    return pooled_ratio(paired(own, other), decoding) if other and own is not other else None


def told(found: Estimate | None) -> str:
    return "" if found is None else str(found)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("act", nargs="?", choices=["run"], help="measure before the tables")
    parser.add_argument("--pair", choices=list(PAIRS), default="tinyllama")
    parser.add_argument("--arms", default=",".join(USUAL), help=", ".join(["plain", *OVERLAPS]))
    parser.add_argument("--widths", default="1-1-1-1", help="children by level of the tree")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--output", type=Path, default=RECORDS)
    parser.add_argument("--show", action="store_true", help="the tables of earlier runs")
    parser.add_argument("--json", action="store_true", help="print them as JSON")
    asked = parser.parse_args()
    if asked.act == "run" and not asked.show:
        run(asked)
    table = rows(read(asked.output))
    if asked.json:
        print(json.dumps(table, indent=1))
    elif table:
        print_table(table, "Drafting while the target runs")
    else:
        print(
            f"{asked.output} holds nothing yet; measure with:"
            " python -m benchmarks.self_speculation.overlap run"
        )


if __name__ == "__main__":
    main()
