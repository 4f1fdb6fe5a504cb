"""Stories that a converted model writes beside those of the model it was converted from.

    .venv/bin/python -m benchmarks.stories_diffusion FOLDER --model stories-diffusion

Each way writes stories from the empty prompt at temperature 1. A larger model of the same tokens
says how likely they are. Writes a line of JSON per story, and prints a table.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import draftwood
from benchmarks.common import json_lines
from draftwood.engine import Options, run_all
from draftwood.sampling import Sampling
from draftwood.text.language_model import LanguageModel
from draftwood.text.prompts import encode_text
from draftwood_bench.records.statistics import difference
from draftwood_bench.run.describe import commit
from draftwood_bench.run.quality import log_likelihood
from draftwood_diffusion.loop import MaskedText
from draftwood_diffusion.opening import masked_model
from draftwood_diffusion.unmasking import parse

SOURCE, JUDGE = "stories-15m", "tinyllama-1.1b"
AT_ONCE = 25  # stories in one pass


@dataclass(frozen=True)
class Story:
    """A story: its tokens without the one that ends it, and the passes that it took."""

    tokens: list[int]
    passes: int


def from_left(lm: LanguageModel, seeds: Sequence[int], longest: int) -> list[Story]:
    """Stories token by token."""
    prompts = [encode_text(lm.tokenizer, "")] * len(seeds)
    made = [
        lm.generate(prompt, max_new_tokens=longest, temperature=1.0, seed=seed)
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    return [Story(_shown(lm, each.token_ids), len(each.token_ids)) for each in made]


def filled(rule: str) -> Callable[[LanguageModel, Sequence[int], int], list[Story]]:
    """Stories whose masks are filled by a method."""

    def write(lm: LanguageModel, seeds: Sequence[int], longest: int) -> list[Story]:
        masked, prompt, method = masked_model(lm, {}), encode_text(lm.tokenizer, ""), parse(rule)
        ends = lm.end_tokens
        tasks = [
            MaskedText(
                masked, prompt, Options(Sampling(1.0), longest, stop_tokens=ends, seed=seed), method
            )
            for seed in seeds
        ]
        for _ in run_all(tasks):
            pass
        return [Story(_shown(lm, each.text.tokens), each.text.runs) for each in tasks]

    return write


def _shown(lm: LanguageModel, tokens: Sequence[int]) -> list[int]:
    return [token for token in tokens if token not in lm.end_tokens]


def measure(
    folder: Path, model: str, rules: Sequence[str], texts: int, longest: int
) -> list[dict[str, Any]]:
    """Write and judge the stories that a stopped run left, and read the whole record."""
    path = folder / "stories.jsonl"
    known = {(each["model"], each["way"], each["story"]) for each in json_lines.read(path)}
    judge = draftwood.load(JUDGE, method="plain")
    ways = [(SOURCE, "plain"), (model, "plain"), *((model, rule) for rule in rules)]
    for name, way in ways:
        lm = draftwood.load(name, method="plain")
        write = from_left if way == "plain" else filled(way)
        missing = [number for number in range(texts) if (name, way, number) not in known]
        for first in range(0, len(missing), AT_ONCE):
            seeds = missing[first : first + AT_ONCE]
            for number, story in zip(seeds, write(lm, seeds, longest), strict=True):
                text = str(lm.tokenizer.decode(story.tokens, skip_special_tokens=True))
                told = {"model": name, "way": way, "story": number, "passes": story.passes}
                told |= judged(judge, text) | {"tokens": len(story.tokens), "text": text}
                json_lines.append(path, told | {"commit": commit()})
    return json_lines.read(path)


def judged(judge: LanguageModel, text: str) -> dict[str, float]:
    """Nats a token by the larger model, and the share of pairs of tokens that are different."""
    begin, *tokens = encode_text(judge.tokenizer, text)
    pairs = list(pairwise(tokens))
    nats = -log_likelihood(judge.model, [begin], tokens)
    return {"nats": nats, "distinct_2": len(set(pairs)) / max(1, len(pairs))}


def table(records: Sequence[dict[str, Any]]) -> str:
    """Means over stories with 95 % intervals, and distances from those of the source."""
    groups = json_lines.grouped(records, "model", "way")
    source = groups.get((SOURCE, "plain"), [])
    lines = [f"{'model':<20}{'way':<18}{'nats a token':>26}{'beside the source':>26}"]
    lines[0] += f"{'distinct-2':>12}{'tokens':>8}{'a pass':>8}"
    for (name, way), found in groups.items():
        nats = np.array([each["nats"] for each in found])
        pairs = zip(found, source, strict=False)
        apart = np.array([own["nats"] - other["nats"] for own, other in pairs])
        tokens, passes = (np.array([each[what] for each in found]) for what in ("tokens", "passes"))
        mean = float(np.mean([each["distinct_2"] for each in found]))
        line = f"{name:<20}{way:<18}{difference(nats)!s:>26}{difference(apart)!s:>26}"
        rate = tokens.sum() / passes.sum()
        lines.append(f"{line}{mean:>12.3f}{tokens.mean():>8.0f}{rate:>8.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="stories-diffusion")
    parser.add_argument("--rules", nargs="+", default=["left-to-right", "one-by-one", "threshold"])
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--longest", type=int, default=160, help="tokens of a story")
    given = parser.parse_args()
    print(table(measure(given.folder, given.model, given.rules, given.texts, given.longest)))


if __name__ == "__main__":
    main()
