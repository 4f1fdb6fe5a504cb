"""Superposed Decoding beside batches of k answers, and beside k drawn without replacement.

    .venv/bin/python -m benchmarks.superposed FOLDER

Goes on with the first tokens of paragraphs of WikiText-2's test set, in PyTorch and natively; the
n-grams are those of its validation set and of two books. Every way writes the same number of tokens
to each prompt in turns, so that seconds meet the same load. The model itself says how likely the
texts are. Writes a line of JSON per prompt and way, and prints a table.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import json_lines
from draftwood.drafters import Nothing
from draftwood.engine import Options, ParallelSampling, run_all
from draftwood.engine import Sequence as Text
from draftwood.loading.hub import load_pretrained
from draftwood.loading.models import load_model
from draftwood.models.model import Model
from draftwood.native.threads import threads
from draftwood.sampling import Sampling
from draftwood.sources.token_index import TokenIndex
from draftwood.storage.data_sets import DataFile
from draftwood.verifiers import Match
from draftwood_bench.records.machine import processor
from draftwood_bench.records.statistics import difference
from draftwood_bench.run.describe import commit
from draftwood_bench.run.quality import log_likelihood
from draftwood_choices.distinct import DistinctTexts
from draftwood_choices.superposed import SuperposedTexts, Superposition
from draftwood_torch.lean.model import LeanModel

MODEL, COUNT, GIVEN, LENGTH = "smollm2-135m", 3, 15, 20
"""Texts, tokens of a prompt and of an answer: those of the paper, but for twice the length."""
PARAGRAPH = 60
"""Words that a paragraph has at least."""
TEXTS = ("wikitext2_raw/wiki.valid.raw.gz", "books/bronte.txt.gz", "books/darwin.txt.gz")
FIRST = "superposed"


@dataclass(frozen=True)
class Written:
    """Answers to one prompt.

    Attributes:
        texts: tokens of each.
        passes: of the model, the prompt's among them.
        rows: that these ran behind the prompt.
    """

    texts: list[list[int]]
    passes: int
    rows: int


Way = Callable[[Model, list[int], int], Written]


def superposed(index: TokenIndex, knobs: Superposition) -> Way:
    """Superposed Decoding with some knobs."""

    def write(model: Model, prompt: list[int], seed: int) -> Written:
        options = Options(Sampling(0.0), LENGTH)
        task = SuperposedTexts(model, prompt, options, COUNT, index, knobs)
        for _ in run_all([task]):
            pass
        return Written([list(each.tokens) for each in task.best], 1 + task.runs, task.runs)

    return write


def distinct(sampling: Sampling) -> Way:
    """Texts drawn without replacement; at temperature 0 it is beam search."""

    def write(model: Model, prompt: list[int], seed: int) -> Written:
        task = DistinctTexts(model, prompt, Options(sampling, LENGTH, seed=seed), COUNT)
        for _ in run_all([task]):
            pass
        return Written([each.tokens for each in task.texts], task.runs, task.rows - 1)

    return write


def batch(sampling: Sampling) -> Way:
    """Texts of their own in one batch, which share the prompt's cache."""

    def write(model: Model, prompt: list[int], seed: int) -> Written:
        members = [
            Text(model, Nothing(), Match(), prompt, Options(sampling, LENGTH, seed=seed + number))
            for number in range(COUNT)
        ]
        texts = [list[int]() for _ in members]
        for _, steps in run_all([ParallelSampling(members)]):
            for number, step in steps:
                texts[number] += step.tokens
        return Written(texts, LENGTH, COUNT * (LENGTH - 1))

    return write


def looked_at(model: Model, prompt: list[int], made: Written) -> dict[str, float]:
    """Measure answers: likelihood by the model, diversity, and how many differ."""
    told = [log_likelihood(model, prompt, text) for text in made.texts]
    pairs = [pair for text in made.texts for pair in pairwise(text)]
    different = len(set(map(tuple, made.texts)))
    return {
        "log_likelihood": float(np.mean(told)),
        "best_log_likelihood": max(told),
        "distinct_2": len(set(pairs)) / len(pairs),
        "different": different / COUNT,
    }


def read(name: str) -> str:
    """Text of a file of data."""
    return DataFile.named(name, "this figure needs its texts").text()


def prompts(tokenizer: Any, limit: int) -> list[list[int]]:
    """First tokens of paragraphs, evenly over the test set."""
    lines = read("wikitext2_raw/wiki.test.raw.gz").splitlines()
    long = [each.strip() for each in lines if len(each.split()) >= PARAGRAPH]
    chosen = [long[place] for place in np.linspace(0, len(long) - 1, limit).astype(int)]
    return [list(tokenizer(each)["input_ids"])[:GIVEN] for each in chosen]


def models() -> dict[str, tuple[Model, Any]]:
    """Load the model in both forms, with its tokenizer."""
    torch_form = load_pretrained(MODEL, dtype="float32")
    native = load_model(MODEL)
    return {
        f"native {native.dtype}": (native.model, native.tokenizer),
        "PyTorch float32": (LeanModel(torch_form.model), torch_form.tokenizer),
    }


def ways(index: TokenIndex) -> dict[str, Way]:
    """All ways to write k answers, by name."""
    nucleus = Sampling(1.0, top_p=0.9)
    return {
        FIRST: superposed(index, Superposition()),
        "superposed, no n-grams": superposed(index, Superposition(alpha=0.0)),
        "greedy batch": batch(Sampling(0.0)),
        "nucleus batch": batch(nucleus),
        "distinct": distinct(nucleus),
        "distinct, T = 0": distinct(Sampling(0.0)),
    }


def measure(folder: Path, limit: int) -> list[dict[str, Any]]:
    """Write all answers that a stopped run left, and the whole record."""
    path = folder / "superposed.jsonl"
    known = {(each["form"], each["way"], each["prompt"]) for each in json_lines.read(path)}
    facts = {"commit": commit(), "processor": processor(), "threads": threads()}
    index = None
    for form, (model, tokenizer) in models().items():
        if index is None:
            texts = [list(tokenizer(read(name))["input_ids"]) for name in TEXTS]
            index = TokenIndex.of(texts, model.vocab_size)
            print(f"n-grams of {index.tokens:,} tokens", flush=True)
        asked = prompts(tokenizer, limit)
        for write in ways(index).values():
            write(model, asked[0], 0)  # warm
        for number, prompt in enumerate(asked):
            for name, write in ways(index).items():
                if (form, name, number) in known:
                    continue
                since = time.perf_counter()
                made = write(model, prompt, COUNT * number)
                seconds = time.perf_counter() - since
                told = {"form": form, "way": name, "prompt": number, "seconds": seconds}
                told |= {"passes": made.passes, "rows": made.rows, "texts": made.texts}
                json_lines.append(path, told | looked_at(model, prompt, made) | facts)
    return json_lines.read(path)


def table(records: Sequence[dict[str, Any]]) -> str:
    """Means over prompts with 95 % intervals; milliseconds over the first way's, in pairs."""
    lines = list[str]()
    for form, own in json_lines.grouped(records, "form").items():
        by_way = json_lines.grouped(complete(own), "way")
        if not by_way:
            continue
        first = by_way[FIRST]
        lines += ["", f"{form}, {len(first)} prompts", row("way", HEAD)]
        for name, found in by_way.items():
            paired = zip(found, first, strict=True)
            ratio = difference(np.array([a["seconds"] / b["seconds"] for a, b in paired]))
            passes, rows = (np.mean([each[what] for each in found]) for what in ("passes", "rows"))
            time_taken = 1000 * np.median([each["seconds"] for each in found])
            told = [f"{time_taken:.0f}", ratio, f"{passes:.1f}", f"{rows:.0f}"]
            told += [difference(np.array([each[what] for each in found])) for what in QUALITY]
            lines.append(row(name, told))
    return "\n".join(lines)


def complete(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of prompts that all ways have answered; a run may have been stopped."""
    count = len({each["way"] for each in records})
    by_prompt = json_lines.grouped(records, "prompt").values()
    return [each for found in by_prompt if len(found) == count for each in found]


QUALITY = ("log_likelihood", "best_log_likelihood", "distinct_2", "different")
HEAD = ("ms, median", "times the first", "passes", "rows", "log-likelihood", "the best's")
HEAD += ("distinct-2", "different")
WIDTHS = (12, 20, 8, 6, 24, 24, 20, 20)


def row(name: str, cells: Sequence[object]) -> str:
    """A row of the table."""
    return f"{name:<24}" + "".join(
        f"{each!s:>{width}}" for each, width in zip(cells, WIDTHS, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=100, help="prompts")
    given = parser.parse_args()
    print(table(measure(given.folder, given.limit)))


if __name__ == "__main__":
    main()
