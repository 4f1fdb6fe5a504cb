"""Stories that a converted model writes by each rule, beside those of the model it came from.

    python -m benchmarks.diffusion.stories write FOLDER   # writes and judges; resumable
    python -m benchmarks.diffusion.stories show           # tables of the kept record, in Markdown

Each way writes stories from the empty prompt at temperature 1, the same seeds for all. A larger
model of the same tokens says how likely they are. ``write`` keeps a line of JSON per way; stories
themselves lie in FOLDER. ``learned`` reads the filter in the model's folder, or another one:
``--rules learned,file=FILE``. ``prefix-cache`` and ``dual-cache`` are for models that see
everything; blocks of stories-diffusion see what was before them, which is kept as it is.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import draftwood
from benchmarks.common import json_lines
from benchmarks.common.scripts import parser_of, print_tables
from benchmarks.diffusion.tables import tables
from draftwood.engine import Options, run_all
from draftwood.sampling import Sampling
from draftwood.text.language_model import LanguageModel
from draftwood.text.prompts import encode_text
from draftwood_bench.run.describe import commit
from draftwood_bench.run.quality import log_likelihood
from draftwood_diffusion.generating import for_model
from draftwood_diffusion.loop import MaskedText, WrittenText
from draftwood_diffusion.opening import masked_model
from draftwood_diffusion.unmasking import Unmasking, parse

RECORDS = json_lines.RESULTS / "stories-diffusion.jsonl"
SOURCE, JUDGE = "stories-15m", "tinyllama-1.1b"
AT_ONCE = 25  # stories in one pass
FIRST_SEED = 1_000_000  # of texts that are judged; training drew its texts by those from 0 on
RULES = (
    *("left-to-right", "one-by-one", "freedave", "freedave,d=8,w=3", "left-to-right+freedave"),
    *("left-to-right+freedave,d=8,w=3", "left-to-right+freedave,d=16,w=4"),
    *("threshold,tau=0.95+freedave,d=16,w=4", "entropy+freedave,d=16,w=4"),
    *("threshold", *(f"threshold,tau={tau}" for tau in (0.95, 0.8, 0.7, 0.5))),
    *("entropy,most=0.1", "entropy", "factor", "factor,f=2", "local-leap", "ccd"),
    *("ccd-agreement", "top-k,k=2", "longest-prefix", "threshold+adablock", "threshold+edit"),
    "learned",
)


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
        made = texts_of(lm, for_model(parse(rule), lm), seeds, longest)
        return [Story(_shown(lm, each.tokens), each.runs) for each in made]

    return write


def texts_of(
    lm: LanguageModel, method: Unmasking, seeds: Sequence[int], longest: int
) -> list[WrittenText]:
    """Texts behind the empty prompt at temperature 1, one for each seed, in common passes."""
    masked, prompt, ends = masked_model(lm, {}), encode_text(lm.tokenizer, ""), lm.end_tokens
    tasks = [
        MaskedText(
            masked, prompt, Options(Sampling(1.0), longest, stop_tokens=ends, seed=seed), method
        )
        for seed in seeds
    ]
    for _ in run_all(tasks):
        pass
    return [each.text for each in tasks]


def _shown(lm: LanguageModel, tokens: Sequence[int]) -> list[int]:
    return [token for token in tokens if token not in lm.end_tokens]


class Stories:
    """Stories of one folder, which are written and judged once; a model that was trained further
    needs another folder.

    Args:
        texts: stories of each way.
        longest: tokens of a story.
    """

    def __init__(self, folder: Path, texts: int, longest: int) -> None:
        self.path, self.texts, self.longest = folder / f"stories-{longest}.jsonl", texts, longest
        self.judge = draftwood.load(JUDGE, method="plain")
        self.held = json_lines.read(self.path)
        # the same text, as rules without a price write it, is judged once
        names = ("nats", "distinct_2")
        self._judged = {each["text"]: {name: each[name] for name in names} for each in self.held}

    def way(self, model: str, rule: str) -> dict[str, Any]:
        """Figures of all stories of a way, those that are missing written first."""
        asked = {"model": model, "way": rule, "first_seed": FIRST_SEED}
        found = [each for each in self.held if asked.items() <= each.items()]
        missing = range(len(found), self.texts)
        lm = draftwood.load(model, method="plain")
        write = from_left if rule == "plain" else filled(rule)
        for first in range(missing.start, missing.stop, AT_ONCE):
            seeds = range(first, min(first + AT_ONCE, missing.stop))
            drawn = [FIRST_SEED + seed for seed in seeds]
            for number, story in zip(seeds, write(lm, drawn, self.longest), strict=True):
                text = str(lm.tokenizer.decode(story.tokens, skip_special_tokens=True))
                if text not in self._judged:
                    self._judged[text] = judged(self.judge, text)
                told = {**asked, "story": number, "passes": story.passes}
                told |= self._judged[text] | {"tokens": len(story.tokens), "text": text}
                json_lines.append(self.path, told)
                found.append(told)
                self.held.append(told)
        shown = found[: self.texts]
        counts = {name: [each[name] for each in shown] for name in ("passes", "tokens")}
        figures = {name: [each[name] for each in shown] for name in ("nats", "distinct_2")}
        rounded = {
            name: [None if each is None else round(each, 4) for each in values]
            for name, values in figures.items()
        }
        return counts | rounded


def judged(judge: LanguageModel, text: str) -> dict[str, float | None]:
    """Nats a token by the larger model, and the share of pairs of tokens that are different; none
    of a story that ends before it begins.
    """
    begin, *tokens = encode_text(judge.tokenizer, text)
    if not tokens:
        return {"nats": None, "distinct_2": None}
    pairs = list(pairwise(tokens))
    nats = -log_likelihood(judge.model, [begin], tokens)
    return {"nats": nats, "distinct_2": len(set(pairs)) / max(1, len(pairs))}


def write(given: argparse.Namespace) -> None:
    """Write what the record lacks."""
    ways = [(SOURCE, "plain"), *((given.model, rule) for rule in given.rules)]
    sizes = {"texts": given.texts, "longest": given.longest, "first_seed": FIRST_SEED}
    called = {given.model: given.called or given.model}
    keys = [{"model": called.get(name, name), "way": _told(way), **sizes} for name, way in ways]
    stories = Stories(given.folder, given.texts, given.longest)
    for (name, way), key in zip(ways, keys, strict=True):
        if any(key.items() <= each.items() for each in json_lines.read(given.output)):
            continue
        json_lines.append(given.output, key | stories.way(name, way) | {"commit": commit()})
        print(key["model"], way, flush=True)


def _told(way: str) -> str:
    """A way as the record names it, without folders of files."""
    return re.sub(r"file=[^,+]*/", "file=", way)


def main() -> None:
    parser = parser_of(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    writing, showing = commands.add_parser("write"), commands.add_parser("show")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--model", default="stories-diffusion")
    writing.add_argument("--called", help="name of a folder in the record")
    writing.add_argument("--rules", nargs="+", default=RULES)
    writing.add_argument("--texts", type=int, default=200)
    writing.add_argument("--longest", type=int, default=64, help="tokens of a story")
    for each in (writing, showing):
        each.add_argument("--output", type=Path, default=RECORDS)
    given = parser.parse_args()
    if given.command == "write":
        write(given)
    print_tables(tables(json_lines.read(given.output), SOURCE))


if __name__ == "__main__":
    main()
