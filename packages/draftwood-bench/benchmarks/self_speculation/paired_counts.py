"""Compare drafters by counts: a record per arm and prompt, and figures with their intervals.

Arms are compared on the same prompts. An interval holds 95 % of the figures that prompts drawn
again give, the same prompts for both sides of a comparison. Counts do not depend on what else the
machine does; seconds do, so a record says whether the machine was quiet.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import draftwood
from benchmarks.common.json_lines import RESULTS, append, read
from benchmarks.common.processes import CURVE
from benchmarks.common.turns import in_turn
from draftwood.costs.curve import Curve
from draftwood.models.native import NativeModel
from draftwood.models.native.prefixes import Prefixes
from draftwood.stats import Stats
from draftwood.text.language_model import LanguageModel
from draftwood_bench.plan.prompts import load_prompts
from draftwood_bench.records.statistics import Estimate, estimate_of

FOLDER = RESULTS / "self-speculation"

Row = Mapping[str, Any]
Side = dict[str, tuple[float, float]]
"""By prompt what an arm adds to both sums of a figure, for instance tokens and passes."""

Table = tuple[str, list[dict[str, str]]]
"""A title and rows."""

Texts = Sequence[tuple[str, Sequence[int]]]
"""Prompts: a name, which other prompts lack, and tokens."""


class Records:
    """Records of one experiment. What is there is not counted again.

    Args:
        name: of the experiment and its file.
        quiet: whether nothing else computes, so that seconds count; what was recorded otherwise is
            then recorded again.
    """

    def __init__(self, name: str, quiet: bool = False, folder: Path = FOLDER) -> None:
        self.path, self.quiet = folder / f"{name}.jsonl", quiet
        self.rows = {key_of(row): row for row in read(self.path)}

    def has(self, arm: str, prompt: str, temperature: float = 0.0) -> bool:
        row = self.rows.get((arm, prompt, temperature))
        return row is not None and (bool(row.get("quiet")) or not self.quiet)

    def add(self, arm: str, prompt: str, temperature: float = 0.0, **numbers: Any) -> None:
        """Write one more record.

        Raises:
            RuntimeError: where a greedy text is not the one of the other arms.
        """
        row = {"arm": arm, "prompt": prompt, "temperature": temperature, **numbers}
        if self.quiet:
            row["quiet"] = True
        texts = {
            own["text"]
            for (_, other, at), own in self.rows.items()
            if (other, at) == (prompt, temperature) and "text" in own
        }
        if temperature == 0.0 and texts - {row.get("text")}:
            raise RuntimeError(f"{arm} writes another text after prompt {prompt} than other arms")
        self.rows[key_of(row)] = row
        append(self.path, row)


def key_of(row: Row) -> tuple[str, str, float]:
    return row["arm"], row["prompt"], row["temperature"]


def numbers_of(stats: Stats, tokens: Sequence[int]) -> dict[str, Any]:
    """Fields of a record for one text."""
    return {
        "tokens": stats.tokens - stats.prefills,
        "passes": stats.target_runs,
        "drafted": stats.drafted,
        "kept": stats.accepted_by_depth,
        "seconds": round(stats.decode_seconds, 4),
        "text": zlib.crc32(np.asarray(tokens, dtype=np.int64).tobytes()),
    }


@dataclass(eq=False)
class Decoder:
    """Decodes prompts by several arms, all of them on a prompt before the next one comes.

    Args:
        records: where counts go.
        new_tokens: of each text.
        more: further numbers of the text that was just written.
        shares: whether an arm takes what others computed of a prompt; not where it reads states.
    """

    records: Records
    new_tokens: int
    more: Callable[[], Mapping[str, Any]] = dict
    shares: bool = True
    stores: dict[int, Prefixes] = field(default_factory=dict)

    def run(
        self, arms: Mapping[str, LanguageModel], texts: Texts, temperature: float, first: int = 0
    ) -> None:
        """Append what is not there yet; arms take turns in another order after each prompt.

        Args:
            first: number of the first prompt.
        """
        for number, (prompt, tokens) in enumerate(texts, first):
            for name in in_turn(arms, number):
                if not self.records.has(name, prompt, temperature):
                    self._decode(name, arms[name], prompt, tokens, temperature, number)
            print(self.records.path.stem, prompt, f"T = {temperature:g}", flush=True)

    def _decode(
        self,
        name: str,
        lm: LanguageModel,
        prompt: str,
        tokens: Sequence[int],
        temperature: float,
        seed: int,
    ) -> None:
        self.more()  # of what came before
        made = lm.generate(
            list(tokens),
            max_new_tokens=self.new_tokens,
            temperature=temperature,
            seed=seed,
            prefixes=self._store(lm),
        )
        numbers = {**numbers_of(made.stats, made.token_ids), **self.more()}
        self.records.add(name, prompt, temperature, **numbers, threads=torch.get_num_threads())

    def _store(self, lm: LanguageModel) -> Prefixes | None:
        """Prefix cache through which prompts of one arm serve the others on the same model."""
        if not isinstance(lm.model, NativeModel) or not self.shares:
            return None
        return self.stores.setdefault(id(lm.model), Prefixes(lm.model))


Term = str | Callable[[Row], float]
"""A number of a record: its name, or what is computed of it."""


def side(rows: Iterable[Row], arm: str, top: Term, bottom: Term, temperature: float = 0.0) -> Side:
    """Terms of an arm's two sums, by prompt."""

    def number(row: Row, term: Term) -> float:
        return float(row[term] if isinstance(term, str) else term(row))

    return {
        row["prompt"]: (number(row, top), number(row, bottom))
        for row in rows
        if (row["arm"], row["temperature"]) == (arm, temperature)
    }


def names_of(rows: Sequence[Row]) -> list[str]:
    """Arms in the order of their records, plain decoding left out."""
    return [name for name in dict.fromkeys(row["arm"] for row in rows) if name != "plain"]


def held_out(sides: Sequence[Side]) -> Side:
    """The best of several arms for prompts that it was not chosen on.

    Each half of the prompts counts with the arm that was best on the other half.
    """
    prompts = [prompt for prompt in sides[0] if all(prompt in own for own in sides)]
    halves = prompts[::2], prompts[1::2]
    found = Side()
    for own, other in (halves, halves[::-1]):
        best = max(sides, key=lambda each: _pooled([each[prompt] for prompt in other]))
        found |= {prompt: best[prompt] for prompt in own}
    return {prompt: found[prompt] for prompt in prompts}


def best(sides: Mapping[str, Side]) -> str:
    """The name of the best arm over all prompts."""
    return max(sides, key=lambda name: _pooled(list(sides[name].values())))


def _pooled(sums: Sequence[tuple[float, float]]) -> float:
    top, bottom = np.array(sums).sum(0)
    return float(top / bottom)


def figure(own: Side) -> Estimate:
    """The ratio of both sums."""
    return _estimate([own], lambda ratios: ratios[0])


def over(own: Side, base: Side) -> Estimate:
    """An arm's figure divided by another's, on their common prompts."""
    return _estimate([own, base], lambda ratios: ratios[0] / ratios[1])


def gain(own: Side, base: Side) -> Estimate:
    """An arm's figure less another's, on their common prompts."""
    return _estimate([own, base], lambda ratios: ratios[0] - ratios[1])


def _estimate(sides: Sequence[Side], value: Callable[[np.ndarray], np.ndarray]) -> Estimate:
    prompts = [prompt for prompt in sides[0] if all(prompt in own for own in sides)]
    if not prompts:
        return Estimate(float("nan"), float("nan"), float("nan"), 0)
    sums = np.array([[own[prompt] for prompt in prompts] for own in sides])
    with np.errstate(divide="ignore", invalid="ignore"):  # of draws in which nothing was kept
        return estimate_of(sums, lambda pooled: value(pooled[..., 0] / pooled[..., 1]))


def kept_tokens(row: Row) -> int:
    """Draft tokens of a text that were kept."""
    return sum(row["kept"])


def tested_tokens(length: int) -> Callable[[Row], float]:
    """Draft tokens of chains of this length that a text's passes tested: behind one that is not
    kept none is.
    """
    return lambda row: row["passes"] + sum(row["kept"][: length - 1])


def speed(rows: Sequence[Row], arm: str, base: str, temperature: float = 0.0) -> str:
    """Tokens per second beside another arm, and whether the machine was quiet."""
    sides = [side(rows, name, "tokens", "seconds", temperature) for name in (arm, base)]
    quiet = all(row.get("quiet") for row in rows if row["arm"] in (arm, base))
    return f"{over(*sides)}{'' if quiet else ' (busy machine)'}"


def spec_bench(lm: LanguageModel, count: int, skipped: int = 0, longest: int = 400) -> Texts:
    """Prompts of Spec-Bench, so many of each category, cut to their newest tokens."""
    found, seen = [], dict[str, int]()
    for prompt in load_prompts("spec-bench", per_category=skipped + count).prompts:
        seen[prompt.category] = seen.get(prompt.category, 0) + 1
        if seen[prompt.category] > skipped:
            found.append((prompt.id, lm.encode(prompt.messages([]))[-longest:]))
    return found


def stories(lm: LanguageModel, count: int) -> Texts:
    """Beginnings of stories, to be continued."""
    prompts = load_prompts("stories", limit=count).prompts
    return [(each.id, lm.encode(each.turns[0], raw=True)[: each.first_tokens]) for each in prompts]


def loaded(name: str, **options: Any) -> LanguageModel:
    """A model that decodes plainly, with one given curve of costs whatever the machine does."""
    return draftwood.load(name, method="plain", curve=Curve(*CURVE), **options)
