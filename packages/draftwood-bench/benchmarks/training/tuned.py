"""Heads for a fine-tune: new ones, and the head of the model that it was tuned from.

    python -m benchmarks.training.tuned tune FOLDER                # fine-tunes smollm2-135m
    draftwood train data DATA --model FOLDER --sets gsm8k --tokens 150k
    python -m benchmarks.training.tuned heads DATA --work WORK     # trains and judges; resumable
    python -m benchmarks.training.tuned show                       # the table, in Markdown

The fine-tune learns the answers of GSM8K's training half, all its weights. A new head trains for so
many minutes of one processor's work; the one that comes with draftwood goes on for a quarter of
them, and is judged as it stands too. All are judged as in ``benchmarks.training.learning``.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.common.json_lines import RESULTS, append, grouped, read
from benchmarks.common.scripts import parser_of, print_tables
from benchmarks.training.drafters import statistical
from benchmarks.training.learning import BASE, SETTINGS, cells, judged, row
from draftwood.heads.folder import load
from draftwood.heads.places import folder_of
from draftwood.loading import hub
from draftwood.storage.data_sets import DataFile
from draftwood_torch.heads.eagle import EagleHead
from draftwood_torch.tensors import as_tensor
from draftwood_train.checkpoints import Checkpoint
from draftwood_train.recipes.eagle import EagleRecipe
from draftwood_train.run import Training

MODEL = "smollm2-135m"
QUESTIONS = "gsm8k/train.jsonl.gz"
RECORDS = RESULTS / "learning" / "tuned.jsonl"
NEW = "new"
RECIPE = EagleRecipe(unroll=2, unroll_from=0.2)


@dataclass(frozen=True)
class Arm:
    """A head: where it starts, and its share of the minutes; none trains nothing."""

    name: str
    is_new: bool
    share: float


ARMS = (
    Arm(NEW, True, 1.0),
    Arm("new, a quarter of the time", True, 0.25),
    Arm("as it comes", False, 0.0),
    Arm("from it, a quarter of the time", False, 0.25),
)


def tune(folder: Path, minutes: float, rate: float, rows: int = 8) -> None:
    """Fine-tune on questions and answers for so many minutes of the processor's work."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = hub.folder_of(MODEL, "bfloat16")
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    lines = [json.loads(each) for each in DataFile.named(QUESTIONS, "or fetch it").lines()]
    optimiser = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)
    model.train()
    first, began, place = 0.0, time.process_time(), 0
    while (spent := (time.process_time() - began) / 60) < minutes:
        texts = [_encoded(tokenizer, lines[(place + i) % len(lines)]) for i in range(rows)]
        place += rows
        optimiser.param_groups[0]["lr"] = rate * min(1.0, 2 * (1 - spent / minutes))
        with torch.autocast("cpu", torch.bfloat16):
            loss = torch.stack([_loss(model, *each) for each in texts]).mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        nats = float(loss.detach())
        first = first or nats
        if place % (10 * rows) == 0:
            print(f"{place} texts, {nats:.3f} nats, {first:.3f} at first", flush=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _encoded(tokenizer: Any, line: dict[str, str]) -> tuple[list[int], int]:
    """Tokens of a chat, and how many of them are the question's."""
    asked = [{"role": "user", "content": line["question"]}]
    prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    answer = line["answer"] + "<|im_end|>"
    given = tokenizer.encode(prompt, add_special_tokens=False)
    return given + tokenizer.encode(answer, add_special_tokens=False), len(given)


def _loss(model: Any, tokens: list[int], given: int) -> torch.Tensor:
    """Nats of a token of the answer."""
    logits = model(torch.tensor([tokens])).logits[0, given - 1 : -1]
    return functional.cross_entropy(logits.float(), torch.tensor(tokens[given:]))


def heads(data: Path, work: Path, minutes: float) -> None:
    """Train and judge what the record lacks."""
    shipped = folder_of(f"{MODEL}-eagle")
    for arm in ARMS:
        if (arm.name, minutes) in {(each["name"], each["minutes"]) for each in read(RECORDS)}:
            continue
        folder = work / arm.name.replace(" ", "-").replace(",", "")
        start = None if arm.is_new else shipped
        settings = replace(SETTINGS, amount=(arm.share or 1.0) * minutes)
        training = Training(RECIPE, data, folder, settings, start=start, resume=True)
        facts: dict[str, Any] = {"name": arm.name, "minutes": minutes, "read": 0, "seconds": 0.0}
        facts |= {"step": 0, "best_step": 0}
        if arm.share:
            if training.run(lambda line: print(line, flush=True)).reason == "stopped":
                return
            state = Checkpoint.read(training.folder)
            facts |= {"read": state.tokens, "seconds": state.seconds}
            facts |= {"step": state.step, "best_step": state.best_step}
        head = load(folder if arm.share else shipped)
        network, target = head.network, training.target(as_tensor(head.draft_tokens))
        assert isinstance(network, EagleHead)
        for found in list(judged(network, RECIPE, training.packing("held-out"), target)):
            append(RECORDS, facts | found)
        print("judged", arm.name, flush=True)


def rows() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """By minutes: every arm, beside the new head on the same texts."""
    for minutes, records in grouped(read(RECORDS), "minutes").items():
        named = grouped(records, "name")
        base = statistical(cells(named[NEW], 8)) if NEW in named else []
        lines = [row(name, own, base) for name, own in named.items()]
        other = f"beside {BASE}, 8 nodes"
        yield (
            f"### Heads of a fine-tune, {minutes:g} minutes",
            [told | {"beside new, 8 nodes": told.pop(other)} for told in lines],
        )


def main() -> None:
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    tuning, training = commands.add_parser("tune"), commands.add_parser("heads")
    commands.add_parser("show")
    tuning.add_argument("folder", type=Path)
    tuning.add_argument("--minutes", type=float, default=8.0)
    tuning.add_argument("--rate", type=float, default=1e-4)
    training.add_argument("data", type=Path)
    training.add_argument("--work", type=Path, required=True)
    training.add_argument("--minutes", type=float, default=12.0, help="of the new head")
    for each in (tuning, training):
        each.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    if given.command == "show":
        print_tables(rows())
        return
    os.nice(19)
    torch.set_num_threads(given.threads)
    if given.command == "tune":
        tune(given.folder, given.minutes, given.rate)
    else:
        heads(given.data, given.work, given.minutes)


if __name__ == "__main__":
    main()
