"""Momentum decoding beside greedy decoding and nucleus sampling: diversity, likelihood, speed.

    .venv/bin/python -m benchmarks.momentum write FOLDER --prompts 120
    .venv/bin/python -m benchmarks.momentum judge FOLDER --judge tinyllama-1.1b
    .venv/bin/python -m benchmarks.momentum time FOLDER --prompts 12
    .venv/bin/python -m benchmarks.momentum show FOLDER

Lan et al. 2022, arXiv:2212.02175. Paragraphs of WikiText-2 are cut behind 32 words and continued,
without an end before the last token. Diversity is that of the paper, of words: rep-n is the share
of n-grams that the text has already, diversity the product of 1 - rep-n for n from 2 to 4. Another
model reads each continuation behind its prompt with its own tokenizer; bits per byte of UTF-8 do
not depend on vocabularies. Beside the texts stands what Wikipedia itself goes on with, 100 words of
it. A stopped run goes on; only for ``time`` must nothing else compute.
"""

import argparse
import gzip
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import draftwood
from benchmarks.common.json_lines import append, read
from benchmarks.common.scripts import print_table
from benchmarks.common.turns import in_turn
from benchmarks.self_speculation.paired_counts import Side, figure, gain, over
from draftwood.storage.data_sets import DataFile
from draftwood.text.language_model import LanguageModel
from draftwood_bench.records.machine import processor
from draftwood_bench.records.statistics import Estimate
from draftwood_bench.run.describe import commit
from draftwood_bench.run.quality import log_likelihood

WORDS, LONG, HUMAN_WORDS = 32, 160, 100
"""Words of a prompt, of a paragraph at least, and of what Wikipedia goes on with."""
TEXT = "wikitext2_raw/wiki.test.raw.gz"
HUMAN, GREEDY = "Wikipedia", "greedy"
ARMS: Mapping[str, Mapping[str, Any]] = {
    GREEDY: {"temperature": 0.0},
    "momentum 0.2": {"temperature": 0.0, "rules": {"momentum": 0.2}},
    "nucleus 0.95": {"temperature": 1.0, "top_p": 0.95},
}
METHODS = ("plain", "auto")
TEXTS, READ, TIMED = "texts.jsonl", "read.jsonl", "timed.jsonl"
MODEL = "smollm2-135m"


def paragraphs() -> list[str]:
    """Long paragraphs of WikiText-2's test part, in its order, written as people write."""
    with gzip.open(DataFile.named(TEXT, "without which nothing is continued").path, "rt") as file:
        lines = [line.strip() for line in file if not line.startswith(" =")]
    return [cleaned(line) for line in lines if len(line.split()) >= LONG]


def cleaned(line: str) -> str:
    """A tokenised line with its marks where people put them.

    Example:
        "the 5 @-@ foot wall , built" becomes "the 5-foot wall, built".
    """
    line = re.sub(r" @(.)@ ", r"\1", line)
    line = re.sub(r'" ([^"]*) "', r'"\1"', line)
    return re.sub(r"\s+(?=[.,;:!?%)\]]|'[a-z]{1,2}\b)|(?<=[(\[])\s+", "", line)


def prompts(count: int) -> dict[str, tuple[str, str]]:
    """Prompts and what comes behind them, by name, evenly out of all paragraphs.

    Raises:
        ValueError: for more than there are.
    """
    every = paragraphs()
    if count > len(every):
        raise ValueError(f"there are {len(every)} long paragraphs, so --prompts is at most that")
    found = {}
    for place in np.linspace(0, len(every) - 1, count).astype(int):
        words = every[place].split(" ")
        found[str(place)] = " ".join(words[:WORDS]), " " + " ".join(words[WORDS:])
    return found


def write(given: argparse.Namespace) -> None:
    """Continue the prompts by every arm, drafted, which writes what undrafted decoding does."""
    file, facts = given.folder / TEXTS, {"commit": commit(), "model": given.model}
    done = {(row["arm"], row["prompt"]) for row in read(file)}
    lm = draftwood.load(given.model, method="auto")
    for name, (prompt, goes_on) in prompts(given.prompts).items():
        if (HUMAN, name) not in done:
            told = {"arm": HUMAN, "prompt": name, "asked": prompt, "text": goes_on}
            append(file, {**told, **facts})
        for arm, options in ARMS.items():
            if (arm, name) not in done:
                length: Any = {"tokens": given.tokens, "min_tokens": given.tokens}
                made = continued(lm, prompt, seed=int(name), **length, **options)
                told = {"arm": arm, "prompt": name, "asked": prompt, "text": made.text}
                append(file, {**told, "tokens": made.stats.tokens, **facts})


def continued(
    lm: LanguageModel, prompt: str, tokens: int, seed: int, **options: Any
) -> draftwood.Generation:
    """Continue a prompt by so many tokens."""
    return lm.generate(prompt, raw=True, seed=seed, max_new_tokens=tokens, **options)


def texts_of(folder: Path) -> list[dict[str, Any]]:
    """Texts that were written, and Wikipedia's own.

    Raises:
        SystemExit: for a folder without any.
    """
    rows = read(folder / TEXTS)
    if not rows:
        raise SystemExit(f"{folder} holds no texts; run `write` first")
    for row in rows:
        if row["arm"] == HUMAN:
            row["text"] = " " + " ".join(row["text"].split()[:HUMAN_WORDS])
    return rows


def judge(given: argparse.Namespace) -> None:
    """Let another model read every text behind its prompt."""
    file = given.folder / READ
    done = {(row["judge"], row["arm"], row["prompt"]) for row in read(file)}
    rows = [
        row
        for row in texts_of(given.folder)
        if (given.judge, row["arm"], row["prompt"]) not in done and row["text"]
    ]
    lm = draftwood.load(given.judge, method="plain")
    for row in rows:
        about = {"judge": given.judge, "arm": row["arm"], "prompt": row["prompt"]}
        bits, size = bits_of(lm, row["asked"], row["text"])
        append(file, {**about, "bits": bits, "bytes": size, "commit": commit()})


def bits_of(lm: LanguageModel, prompt: str, text: str) -> tuple[float, int]:
    """Bits that a model needs for a text behind its prompt, and the text's bytes.

    Tokens that both share a place in, where the text begins, are the prompt's own less what they
    were without the text.
    """
    before, whole = lm.encode(prompt, raw=True), lm.encode(prompt + text, raw=True)
    pairs = zip(before, whole, strict=False)
    common = next((place for place, (a, b) in enumerate(pairs) if a != b), len(before))
    nats = -log_likelihood(lm.model, whole[:common], whole[common:]) * (len(whole) - common)
    if common < len(before):
        own = before[common:]
        nats += log_likelihood(lm.model, before[:common], own) * len(own)
    return nats / math.log(2), len(text.encode())


def clock(given: argparse.Namespace) -> None:
    """Time every arm, with drafts and without, on the same prompts in changing order."""
    facts = {"commit": commit(), "processor": processor(), "model": given.model}
    lm = draftwood.load(given.model, method="plain")
    ways = {method: lm.with_method(method) for method in METHODS}
    arms = [(arm, method) for arm in ARMS for method in METHODS]
    chosen = prompts(given.prompts)
    for arm, method in arms:  # what is measured or read once
        continued(ways[method], next(iter(chosen.values()))[0], 16, 0, **ARMS[arm])
    for turn, (name, (prompt, _)) in enumerate(chosen.items()):
        said = dict[str, set[str]]()
        for arm, method in in_turn(arms, turn):
            wanted: Any = {"tokens": given.tokens, "seed": int(name), "ignore_eos": True}
            made = continued(ways[method], prompt, **wanted, **ARMS[arm])
            said.setdefault(arm, set()).add(made.text)
            about = {"arm": arm, "method": method, "prompt": name}
            cost = {"tokens": made.stats.tokens - 1, "seconds": made.stats.decode_seconds}
            cost |= {"passes": made.stats.target_runs, "at": turn}
            append(given.folder / TIMED, {**about, **cost, **facts})
        parted = [arm for arm, texts in said.items() if len(texts) > 1]
        if parted:
            print(f"prompt {name}: {', '.join(parted)} writes another text with drafts", flush=True)


def repeated(text: str, size: int) -> float:
    """Share of a text's n-grams of words that it has already (rep-n), between 0 and 1."""
    words = text.split()
    grams = [tuple(words[at : at + size]) for at in range(len(words) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def diversity(text: str) -> float:
    """Product of 1 - rep-n for n from 2 to 4."""
    return math.prod(1 - repeated(text, size) for size in (2, 3, 4))


FIGURES: Mapping[str, Callable[[str], float]] = {
    "distinct-2": lambda text: 1 - repeated(text, 2),
    "rep-3": lambda text: repeated(text, 3),
    "rep-4": lambda text: repeated(text, 4),
    "diversity": diversity,
}


def sides(rows: Sequence[Mapping[str, Any]], top: str, bottom: str) -> dict[str, Side]:
    """Terms of a ratio by arm and prompt."""
    found: dict[str, Side] = {}
    for row in rows:
        found.setdefault(row["arm"], {})[row["prompt"]] = float(row[top]), float(row[bottom])
    return found


def with_gain(found: Mapping[str, Side], arm: str, digits: int = 2) -> str:
    """An arm's figure, and what it has over greedy decoding, prompt by prompt."""
    own = told(figure(found[arm]), digits)
    return own if arm == GREEDY else f"{own}, {told(gain(found[arm], found[GREEDY]), digits, '+')}"


def told(found: Estimate, digits: int = 2, sign: str = "") -> str:
    shape = f"{sign}.{digits}f"
    return found.written(shape)


def quality_rows(folder: Path) -> list[dict[str, str]]:
    """A row for each arm: diversity, and bits per byte under each judge."""
    texts = texts_of(folder)
    columns = dict[str, dict[str, Side]]()
    for name, value in FIGURES.items():
        valued = [{**row, "value": value(row["text"]), "one": 1} for row in texts]
        columns[name] = sides(valued, "value", "one")
    looked_at = read(folder / READ)
    for each in dict.fromkeys(row["judge"] for row in looked_at):
        own = [row for row in looked_at if row["judge"] == each]
        found = sides(own, "bits", "bytes")
        columns[f"bits per byte, {each}, {len(found[GREEDY])} texts"] = found
    return [
        {"arm": arm, "texts": str(len(found))}
        | {name: with_gain(own, arm) for name, own in columns.items() if arm in own}
        for arm, found in columns["diversity"].items()
    ]


def speed_rows(folder: Path) -> list[dict[str, str]]:
    """A row for each arm and method: speed, and beside greedy decoding by the same method."""
    rows, found = read(folder / TIMED), list[dict[str, str]]()
    for method in METHODS:
        own = sides([row for row in rows if row["method"] == method], "tokens", "seconds")
        passes = sides([row for row in rows if row["method"] == method], "tokens", "passes")
        plain = sides([row for row in rows if row["method"] == "plain"], "tokens", "seconds")
        found += [
            {"arm": arm, "method": method, "tokens/s": told(figure(own[arm]), 1)}
            | {"over greedy": told(over(own[arm], own[GREEDY]))}
            | {"over its plain": told(over(own[arm], plain[arm]))}
            | {"tokens a pass": told(figure(passes[arm]))}
            for arm in own
        ]
    return found


def show(given: argparse.Namespace) -> None:
    """Print what the folder holds."""
    print_table(
        quality_rows(given.folder), "diversity and likelihood, behind it the gain over greedy"
    )
    if rows := speed_rows(given.folder):
        print_table(rows, "\nspeed of decoding")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for name, run in {"write": write, "judge": judge, "time": clock, "show": show}.items():
        command = commands.add_parser(name, help=run.__doc__)
        command.set_defaults(run=run)
        command.add_argument("folder", type=Path)
        if run in (write, clock):
            command.add_argument("--model", default=MODEL)
            command.add_argument("--tokens", type=int, default=128)
            command.add_argument("--prompts", type=int, default=120 if run is write else 12)
        if run is judge:
            command.add_argument("--judge", default="tinyllama-1.1b")
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
