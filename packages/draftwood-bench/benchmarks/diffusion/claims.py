"""Claims of papers on unmasking, each tested apart from the rule that was made of it.

    python -m benchmarks.diffusion.claims   # some minutes; then the table, in Markdown

``near``: are moderately sure predictions right more often close to an anchor (LocalLeap,
arXiv:2510.07081)? Looked at are all passes of texts that are written one by one at temperature 0;
right is what the finished text holds. ``end cut``: what is spared by masks behind an end token that
are taken away (Learn2PD, arXiv:2509.25188), with nothing else of that method. ``delimiters``: do
blocks that end where lines or sentences do err less behind these ends, at equal passes (AdaBlock,
arXiv:2509.26432)? Figures of its texts are kept.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import draftwood
from benchmarks.common import json_lines
from benchmarks.common.scripts import parser_of, print_table
from benchmarks.diffusion import delimiters
from benchmarks.diffusion.stories import FIRST_SEED, SOURCE, texts_of
from draftwood.engine import Options, run_all
from draftwood.text.language_model import LanguageModel
from draftwood.text.prompts import encode_text
from draftwood_bench.records.statistics import difference
from draftwood_bench.run.describe import commit
from draftwood_diffusion.loop import MaskedText, written
from draftwood_diffusion.masked_model import MaskedModel
from draftwood_diffusion.opening import masked_model
from draftwood_diffusion.rules.local_leap import LocalLeap
from draftwood_diffusion.rules.one_by_one import ByConfidence
from draftwood_diffusion.unmasking import Unmasking, parse
from draftwood_diffusion.view import View

RECORDS = json_lines.RESULTS / "delimiters.jsonl"
BEGINNING = 16  # tokens of a story of the source that are given
FAR = "far"
NEAR = "near"


@dataclass(frozen=True)
class Watched(ByConfidence):
    """One by one, which keeps what it sees."""

    seen: list[View] = field(default_factory=list)

    def choose(self, view: View) -> Any:
        self.seen.append(view)
        return super().choose(view)


def rights(views: Sequence[View], rule: LocalLeap) -> dict[str, tuple[int, int]]:
    """Right predictions, and all, of open places between both thresholds, near anchors and far.

    Passes without an anchor fix such a place, which is right by construction; they are left out.
    """
    found = {NEAR: (0, 0), FAR: (0, 0)}
    for view in views:
        assert view.reference is not None
        anchors = np.flatnonzero(view.is_open & (view.confidence >= rule.tau))
        between = (view.confidence >= rule.near) & (view.confidence < rule.tau)
        for place in np.flatnonzero(view.is_open & between & (view.reference >= 0)):
            if not len(anchors):
                break
            name = NEAR if abs(anchors - place).min() <= rule.radius else FAR
            right, every = found[name]
            found[name] = right + int(view.predictions[place] == view.reference[place]), every + 1
    return found


def near_anchors(
    masked: MaskedModel, prompts: Sequence[list[int]], ends: frozenset[int], longest: int
) -> dict[str, str]:
    """Shares that are right near anchors and far from them, and their difference over texts."""
    options = Options(max_new_tokens=longest, stop_tokens=ends)
    counts = list[dict[str, tuple[int, int]]]()
    for prompt in prompts:
        reference = written(masked, prompt, options, Unmasking()).tokens
        watched = Watched()
        for _ in run_all([MaskedText(masked, prompt, options, Unmasking(rule=watched), reference)]):
            pass
        counts.append(rights(watched.seen, LocalLeap()))
    sums = {name: np.array([each[name] for each in counts]) for name in (NEAR, FAR)}
    told = {name: f"{_share(each):.3f} of {each[:, 1].sum()}" for name, each in sums.items()}
    drawn = np.random.default_rng(0).integers(len(counts), size=(2000, len(counts)))
    apart = [_share(sums[NEAR][own]) - _share(sums[FAR][own]) for own in drawn]
    low, high = np.nanquantile(apart, (0.025, 0.975))
    more = _share(sums[NEAR]) - _share(sums[FAR])
    return told | {"near less far": f"{more:.3f} [{low:.3f}, {high:.3f}]"}


def _share(counts: np.ndarray) -> float:
    right, every = counts.sum(0)
    return float(right / every) if every else float("nan")


def end_cut(lm: LanguageModel, seeds: range, longest: int) -> dict[str, str]:
    """Passes of a text with and without the cut, and texts that stay the same."""
    rules, ends = ("threshold", "threshold+end-cut"), lm.end_tokens
    usual, cut = (texts_of(lm, parse(rule), seeds, longest) for rule in rules)
    shares = np.array([one.runs / other.runs for one, other in zip(cut, usual, strict=True)])
    same = sum(one.tokens == other.tokens for one, other in zip(cut, usual, strict=True))
    ended = sum(each.tokens[-1] in ends for each in usual)
    return {
        "texts that end": f"{ended} of {len(usual)}",
        "passes with the cut, of those without": str(difference(shares)),
        "same texts": f"{same}",
    }


def behind_delimiters(
    lm: LanguageModel, judge: LanguageModel, seeds: range, longest: int, output: Path
) -> Iterator[dict[str, Any]]:
    """Figures of each kind of delimiters; what the record lacks is measured and kept."""
    asked = {"model": lm.name, "judge": judge.name, "texts": len(seeds), "longest": longest}
    for name, marks in delimiters.DELIMITERS.items():
        key = {**asked, "delimiters": name}
        held = [each for each in json_lines.read(output) if key.items() <= each.items()]
        if not held:
            found = delimiters.compare(lm, judge, marks, seeds, longest)
            held.append(key | found | {"commit": commit()})
            json_lines.append(output, held[0])
        yield held[0]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="stories-diffusion")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument(
        "--longest",
        type=int,
        default=64,
        help="tokens of a text of the first claim; others fill the context",
    )
    parser.add_argument("--output", type=Path, default=RECORDS)
    run(parser.parse_args())


def run(given: argparse.Namespace) -> None:
    """Test the claims and print what came of them."""
    lm, source = (draftwood.load(each, method="plain") for each in (given.model, SOURCE))
    masked = masked_model(lm, {})
    empty, seeds = encode_text(source.tokenizer, ""), range(FIRST_SEED, FIRST_SEED + given.texts)
    stories = [
        source.generate(empty, max_new_tokens=BEGINNING, temperature=1.0, seed=seed).text
        for seed in seeds
    ]
    prompts = [encode_text(lm.tokenizer, each) for each in stories]
    ends, room = frozenset(lm.end_tokens), (lm.model.context_length or 256) - len(empty)
    print_table([near_anchors(masked, prompts, ends, given.longest)], "Near anchors")
    print_table([end_cut(lm, seeds, room)], "End cut")
    found = behind_delimiters(lm, source, seeds, room, given.output)
    print_table([delimiters.row(each) for each in found], "Behind delimiters")


if __name__ == "__main__":
    main()
