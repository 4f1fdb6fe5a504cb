"""A target that drafts for itself with its weights in 4 bits, or with a window of a long text."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.common.processes import CURVE
from benchmarks.self_speculation.paired_counts import (
    Decoder,
    Records,
    Row,
    Table,
    Texts,
    figure,
    kept_tokens,
    loaded,
    over,
    side,
    spec_bench,
    speed,
    stories,
    tested_tokens,
)
from draftwood.costs.budget import Budget
from draftwood.costs.curve import Curve
from draftwood.drafters import Int4SelfDraft, SuffixDecoding
from draftwood.engine.method import Method
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.models.native.int4 import RoundedWeights
from draftwood.native.matrix import Matrix
from draftwood.shapes import Widths
from draftwood.storage.data_sets import DataFile
from draftwood.text.language_model import LanguageModel
from draftwood.verifiers import Match, Rejection
from draftwood_methods.drafters.merged import MergedDrafters
from draftwood_methods.drafters.windowed import Windowed

LENGTH = 4  # draft tokens in a row

# The same weights in 4 bits

PLAIN, SHADOW, SHUFFLED = "plain", "shadow", "shadow with shuffled scales"


def shuffled_scales(weights: Tensor, groups: int = 32) -> Tensor:
    """The same steps of each group of weights with scale and offset of another group."""
    own = weights.view(-1, groups)
    low, high = own.amin(1, keepdim=True), own.amax(1, keepdim=True)
    spread = (high - low).clamp(min=1e-12)
    order = torch.randperm(len(own), generator=torch.Generator().manual_seed(0))
    mixed = low[order] + (own - low) / spread * spread[order]
    return mixed.view_as(weights)


def shuffled_int4(model: Model) -> RoundedWeights:
    assert isinstance(model, NativeModel)
    pack = Matrix.pack

    def shuffling(weights: Tensor, bias: Tensor | None, products: str) -> Matrix:
        return pack(shuffled_scales(weights), bias, products)

    with patch.object(Matrix, "pack", shuffling):
        return RoundedWeights(model.weights)


def run_shadow(records: Records) -> None:
    method = Method(Int4SelfDraft(Widths((1,) * LENGTH)), Rejection())
    for name in ("smollm2-135m", "stories-15m"):
        lm, other = (loaded(name, dtype="bfloat16") for _ in range(2))
        vars(other.model)["int4"] = shuffled_int4(other.model)
        texts = spec_bench(lm, 1) if name == "smollm2-135m" else stories(lm, 24)
        arms = {f"{name}, {PLAIN}": lm, f"{name}, {SHADOW}": lm.with_method(method)}
        control = {f"{name}, {SHUFFLED}": other.with_method(method)}
        Decoder(records, 64).run(arms | control, texts, 0.0)
        Decoder(records, 64).run(arms, texts, 1.0)


def shadow_tables(rows: Sequence[Row]) -> Iterator[Table]:
    lines = []
    arms = dict.fromkeys((row["arm"], row["temperature"]) for row in rows)
    for arm, temperature in sorted(arms, key=lambda each: (each[0].split(", ")[0], each[1])):
        target, drafts = arm.split(", ")
        if drafts == PLAIN:
            continue
        kept = side(rows, arm, kept_tokens, tested_tokens(LENGTH), temperature)
        passes = side(rows, arm, "tokens", "passes", temperature)
        lines.append(
            {
                "target in bfloat16": f"{target}, T = {temperature:g}",
                "drafts": drafts,
                "acceptance": str(figure(kept)),
                "tokens per pass": str(figure(passes)),
                "speed over plain": speed(rows, arm, f"{target}, {PLAIN}", temperature),
            }
        )
    yield "Four draft tokens from the target's own weights in 4 bits", lines


# A window of a long text

KINDS = ("free", "quoting")


def long_texts(lm: LanguageModel, lengths: Sequence[int], count: int) -> Texts:
    """Parts of books to go on with; where they quote, a passage of theirs begins once more."""
    found = []
    for book in ("bronte", "darwin"):
        text = DataFile.named(f"books/{book}.txt.gz", "or leave this measurement out").text()
        for number in range(count):
            start = len(text) * (1 + number) // (count + 2)
            tokens = lm.encode(text[start : start + 8 * max(lengths)], raw=True)
            for length in lengths:
                free, passage = tokens[:length], tokens[length // 3 : length // 3 + 40]
                for kind in KINDS:
                    own = free if kind == "free" else [*free[40:], *passage]
                    found.append((f"{book} {number}, {kind}, {length}", own))
    return found


def run_windowed(records: Records) -> None:
    lm = loaded("smollm2-135m")
    suffix = SuffixDecoding(budget=Budget.of(Curve(*CURVE)))
    window = Windowed(shape=Widths((1,) * LENGTH))
    methods = {
        "windowed": Method(window, Match()),
        "windowed, no first places": Method(replace(window, sinks=0, window=512), Match()),
        "suffix": Method(suffix, Match()),
        "windowed and suffix": Method(MergedDrafters((window, suffix)), Match()),
    }
    arms = {name: lm.with_method(method) for name, method in methods.items()}
    Decoder(records, 48).run({"plain": lm, **arms}, long_texts(lm, (4000, 7500), 1), 0.0)


def windowed_tables(rows: Sequence[Row]) -> Iterator[Table]:
    lines = []
    for kind in KINDS:
        own = [row for row in rows if f", {kind}, " in row["prompt"]]
        for arm in dict.fromkeys(row["arm"] for row in own if row["arm"] != "plain"):
            passes = [side(own, name, "tokens", "passes") for name in (arm, "windowed")]
            lines.append(
                {
                    "texts": kind,
                    "drafts": arm,
                    "tokens per pass": str(figure(passes[0])),
                    "over windowed": "" if arm == "windowed" else str(over(*passes)),
                    "draft tokens": str(figure(side(own, arm, "drafted", "passes"))),
                    "speed over plain": speed(own, arm, "plain"),
                }
            )
    yield "Behind 4,000 and 7,500 tokens of books", lines
