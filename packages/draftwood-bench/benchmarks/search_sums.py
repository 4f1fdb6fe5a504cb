"""LiteSearch beside breadth-first search, on sums that a small model trained here writes in steps.

    .venv/bin/python -m benchmarks.search_sums FOLDER

Trains a Llama of a million parameters, until it solves half of the sums greedily, and a value head
on its answers to other sums; then solves sums that neither has seen. A stopped run goes on there.
Tokens, passes and calls of the value head do not depend on how busy the machine is.

Greedy answers are compared with those of Transformers to the same sums, in float32. The share of
solved sums differs by several points from one lot of sums to another, so that the share by which
training stopped says little about the sums that are asked.
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from draftwood.storage.atomic import write_file
from draftwood_bench.records.statistics import Estimate, difference
from draftwood_bench.run.record_folder import RecordFolder
from draftwood_choices.solving.run import PLAIN, PROTOCOL, SolvedRecord

LETTERS = "Ċ+=:0123456789"  # the first is ByteLevel's line break
END = "<end>"
TERMS, LARGEST = 6, 99
BATCH, STEPS, EVERY, RATE = 96, 6000, 100, 1e-3
CHECKED, ENOUGH = 200, 0.5
"""Sums by which training is stopped, and the share of them that is solved then."""
TAUGHT, ASKED, ANSWERS, LENGTH = 400, 300, 10, 64
ASKED_SEED = 4
LITE, BROAD = "lite-search", "breadth-first"


def sums(seed: int, count: int) -> list[list[int]]:
    """Terms of sums."""
    rng = random.Random(seed)
    return [[rng.randint(1, LARGEST) for _ in range(TERMS)] for _ in range(count)]


def asked(terms: Sequence[int]) -> str:
    """A sum as the model reads it."""
    return "+".join(map(str, terms)) + ":"


def worked(terms: Sequence[int]) -> str:
    """Its answer: a line for each term that is added."""
    lines, total = list[str](), terms[0]
    for term in terms[1:]:
        lines.append(f"{total}+{term}={total + term}")
        total += term
    return "\n".join(lines)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each letter."""
    vocabulary = {letter: number for number, letter in enumerate([*LETTERS, END])}
    letters = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=letters, eos_token=END, pad_token=END)


class Trainer:
    """Trains the model that writes."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.tokenizer, self.rng = tokenizer(), random.Random(1)
        config = LlamaConfig(
            vocab_size=len(LETTERS) + 1,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=len(LETTERS),
            pad_token_id=len(LETTERS),
        )
        self.model = LlamaForCausalLM(config)
        self.held = sums(2, CHECKED)

    def train(self, folder: Path) -> None:
        """Train until half of the sums held out are solved; the folder is written last."""
        optimizer = torch.optim.AdamW(self.model.parameters(), RATE, weight_decay=0.01)
        for step in range(1, STEPS + 1):
            loss = self._loss()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            if step % EVERY == 0:
                solved = self.solved()
                print(f"step {step}: loss {loss.item():.3f}, solves {solved:.0%}", flush=True)
                if solved >= ENOUGH:
                    break
        self.tokenizer.save_pretrained(folder)
        self.model.save_pretrained(folder)

    def _loss(self) -> torch.Tensor:
        """Cross-entropy of answers to new sums."""
        rows, labels = list[list[int]](), list[list[int]]()
        for _ in range(BATCH):
            terms = [self.rng.randint(1, LARGEST) for _ in range(TERMS)]
            prompt = self.tokenizer(asked(terms))["input_ids"]
            answer = [*self.tokenizer(worked(terms))["input_ids"], len(LETTERS)]
            rows.append([*prompt, *answer])
            labels.append([*([-100] * len(prompt)), *answer])
        longest = max(map(len, rows))
        rows = [[*row, *([len(LETTERS)] * (longest - len(row)))] for row in rows]
        labels = [[*row, *([-100] * (longest - len(row)))] for row in labels]
        return self.model(input_ids=torch.tensor(rows), labels=torch.tensor(labels)).loss

    def solved(self) -> float:
        """Share of the sums held out that greedy answers solve."""
        return share_solved(greedy(self.model, self.held), self.held)


def greedy(model: Any, terms: Sequence[Sequence[int]]) -> list[str]:
    """Greedy answers of Transformers to sums, in one batch."""
    reader = tokenizer()
    reader.padding_side = "left"
    read = reader([asked(each) for each in terms], return_tensors="pt", padding=True)
    ids: torch.Tensor = read["input_ids"]  # type: ignore[assignment]
    with torch.inference_mode():
        made = model.generate(
            input_ids=ids,
            attention_mask=read["attention_mask"],  # type: ignore[arg-type]
            max_new_tokens=LENGTH,
            do_sample=False,
        )
    return reader.batch_decode(made[:, ids.shape[1] :], skip_special_tokens=True)


def share_solved(texts: Sequence[str], terms: Sequence[Sequence[int]]) -> float:
    """Share of answers whose last line gives the sum."""
    pairs = zip(texts, terms, strict=True)
    right = [text.rpartition("=")[2] == str(sum(each)) for text, each in pairs]
    return sum(right) / len(right)


def beside_transformers(model: Path, records: Sequence[SolvedRecord]) -> str:
    """Say how many of the recorded greedy answers are not those of Transformers."""
    by_prompt = {each.prompt: each.text for each in records if each.point == PLAIN}
    terms = sums(ASKED_SEED, len(by_prompt))  # ids are numbers of lines
    ours = [by_prompt[str(number)] for number in range(1, len(by_prompt) + 1)]
    theirs = greedy(LlamaForCausalLM.from_pretrained(model), terms)
    differing = sum(one != other for one, other in zip(ours, theirs, strict=True))
    return (
        f"greedy answers: draftwood solves {share_solved(ours, terms):.1%}, Transformers"
        f" {share_solved(theirs, terms):.1%} of the same {len(terms)} sums; {differing} texts"
        " differ"
    )


def write_prompts(file: Path, seed: int, count: int) -> str:
    """Sums as ``draftwood bench`` reads prompts, with their answers."""
    lines = [{"prompt": asked(each), "answer": str(sum(each))} for each in sums(seed, count)]
    write_file(file, "".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


def draftwood(*words: str) -> None:
    """Run a command of draftwood, and end where it fails."""
    subprocess.run((sys.executable, "-m", "draftwood.cli.main", *words), check=True)


def told(records: Sequence[SolvedRecord]) -> str:
    """Say what LiteSearch has over breadth-first search, sum by sum, and at which costs."""
    by_point: dict[str, dict[str, SolvedRecord]] = {}
    for each in records:
        by_point.setdefault(each.point, {})[each.prompt] = each
    lite, broad = by_point[LITE], by_point[BROAD]
    more = difference(np.array([lite[name].solved - broad[name].solved for name in broad]))
    costs = {
        name: cost_ratio(
            [getattr(lite[prompt], name) for prompt in broad],
            [getattr(broad[prompt], name) for prompt in broad],
        )
        for name in ("tokens", "judge_calls", "passes")
    }
    held = more.value >= -0.02 and costs["tokens"].value <= 1 / 3
    verdict = "holds" if held else "does not hold"
    return (
        f"{LITE} over {BROAD}: solved {more}; tokens {costs['tokens']}, calls of the value head"
        f" {costs['judge_calls']}, passes {costs['passes']} times as many. Within two points at a"
        f" third of the tokens: {verdict}"
    )


def cost_ratio(one: Sequence[float], other: Sequence[float]) -> Estimate:
    """Sum over sum, with its interval from pairs drawn again."""
    pairs = np.array([one, other], np.float64)
    drawn = np.random.default_rng(0).integers(0, pairs.shape[1], (2000, pairs.shape[1]))
    ratios = pairs[0][drawn].sum(1) / pairs[1][drawn].sum(1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Estimate(float(pairs[0].sum() / pairs[1].sum()), float(low), float(high), len(one))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    model, head = folder / "model", folder / "head"
    folder.mkdir(parents=True, exist_ok=True)
    if not (model / "model.safetensors").is_file():
        Trainer().train(model)
    common = ("--model", str(model), "--dtype", "float32", "--max-new-tokens", str(LENGTH))
    common += ("--temperature", "0.6")
    taught = write_prompts(folder / "taught.jsonl", 3, TAUGHT)
    draftwood("train", "value", str(head), "--prompts", taught, "--answers", "8", *common)
    solved = write_prompts(folder / "asked.jsonl", ASKED_SEED, ASKED)
    ways = ("--methods", f"{LITE},{BROAD},best-of", "--answers", str(ANSWERS))
    draftwood(
        *("bench", "solve", "--prompts", solved, *ways, "--judge", str(head), *common),
        *("--output", str(folder)),
    )
    found = RecordFolder(folder, PROTOCOL, SolvedRecord)
    print(beside_transformers(model, found.read()))
    print(told(found.read()))
    print(f"commits: {', '.join(each or 'unknown' for each in found.commits())}")


if __name__ == "__main__":
    main()
