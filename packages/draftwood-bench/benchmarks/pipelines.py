"""Passes that begin before the ones before them are over: PPD's threads and SPEED's pipeline.

`benchmarks.family` runs them.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.self_speculation.paired_counts import (
    Decoder,
    Records,
    Row,
    Table,
    figure,
    loaded,
    names_of,
    over,
    side,
    spec_bench,
)
from draftwood.engine.method import Method
from draftwood.native.formats import HeadSizes
from draftwood.native.threads import lift_limit, limit_others
from draftwood.sampling import Sampling
from draftwood.shapes import Widths
from draftwood.storage.data_sets import DataFile
from draftwood.text.language_model import LanguageModel
from draftwood.verifiers import Match
from draftwood_methods.begun import BegunTokens
from draftwood_methods.drafters import EarlyExit, Pipelined
from draftwood_methods.exits import Exits
from draftwood_methods.speed import LoopedDecoder, Pipeline
from draftwood_torch.heads.layers import attended, causal

PLAIN = "plain"

# PPD


class Guesses:
    """Counts guesses of tokens that were asked for, and that were right; and CPU seconds."""

    def __init__(self) -> None:
        self.asked = self.right = 0
        self.since = time.process_time()
        go_on = BegunTokens.go_on

        def counting(begun: BegunTokens, token: int) -> Any:
            found = go_on(begun, token)
            self.asked, self.right = self.asked + 1, self.right + (found is not None)
            return found

        BegunTokens.go_on = counting  # type: ignore[method-assign]

    def __call__(self) -> Mapping[str, Any]:
        """Numbers since the last call."""
        now = time.process_time()
        numbers = {"asked": self.asked, "right": self.right, "cpu": round(now - self.since, 4)}
        self.asked, self.right, self.since = 0, 0, now
        return numbers


@dataclass(frozen=True, eq=False)
class OneThread:
    """A model whose passes have one thread, as those beside guesses have on two cores."""

    inner: LanguageModel

    @property
    def model(self) -> Any:
        return self.inner.model

    def generate(self, *given: Any, **options: Any) -> Any:
        limit_others(1)
        try:
            return self.inner.generate(*given, **options)
        finally:
            lift_limit(1)


def ppd_name(layer: int, guesses: int) -> str:
    return f"pipelined, d = {layer}, k = {guesses}"


def run_ppd(records: Records, given: argparse.Namespace) -> None:
    lm = loaded("smollm2-135m")
    layers = lm.model.layers
    exits = Exits.of(lm.model, layers=(layers // 2, 2 * layers // 3), seconds=30.0)
    arms: dict[str, Any] = {PLAIN: lm, "plain, one thread": OneThread(lm)}
    for layer in (layers // 2, 2 * layers // 3):
        for guesses in (1, 3):
            drafter = Pipelined(layer, guesses, exits)
            arms[ppd_name(layer, guesses)] = lm.with_method(Method(drafter, Match()))
    in_turn = EarlyExit(layers // 2, exits, Widths((3,)))
    arms["in turn, d = 15, k = 3"] = lm.with_method(Method(in_turn, Match()))
    Decoder(records, 64, Guesses()).run(arms, spec_bench(lm, 2), 0.0)


def ppd_tables(rows: Sequence[Row]) -> Iterator[Table]:
    lines, layers = [], 30
    for name in names_of(rows):
        seconds = [side(rows, each, "seconds", "tokens") for each in (name, PLAIN)]
        cpu = [side(rows, each, "cpu", "tokens") for each in (name, PLAIN)]
        line = {"arm": name, "seconds over plain": str(over(*seconds))}
        line["CPU seconds over plain"] = str(over(*cpu))
        line["right guesses"] = line["seconds by the paper"] = line["passes by count"] = ""
        if name.startswith("pipelined"):
            depth = int(name.split("d = ")[1].split(",")[0]) / layers
            line["right guesses"] = str(figure(side(rows, name, "right", "asked")))
            for title, term in (("seconds by the paper", latency), ("passes by count", compute)):
                own = side(rows, name, lambda row, f=term, d=depth: f(row, d), "asked")
                line[title] = str(figure(own))
        line["machine"] = "quiet" if all(row.get("quiet") for row in rows) else "busy"
        lines.append(line)
    yield "PPD: seconds of a token where guesses begin beside the pass under way", lines


def latency(row: Row, depth: float) -> float:
    """Passes that the asked tokens wait for, where candidates begin at this share of the layers."""
    return row["asked"] - row["right"] * (1.0 - depth)


def compute(row: Row, depth: float) -> float:
    """Passes that are made for them: each token's candidates make a part of one, and what was begun
    rightly is not made again.
    """
    return row["asked"] + (row["asked"] - row["right"]) * depth


# SPEED

LOOPED = {"losses at all cycles": True, "loss at the last cycle": False}
SIZES = HeadSizes(hidden=128, intermediate_size=256, heads=4, num_kv_heads=4, head_dim=32)
LAYERS, CYCLES, BYTES, PLACES = 2, 6, 256, 128
TEXTS, PROMPT, WRITTEN = 24, 64, 96


def book() -> torch.Tensor:
    """Bytes of a book, the last twentieth for prompts."""
    text = DataFile.named("books/darwin.txt.gz", "or leave this measurement out").text()
    return torch.tensor(list(text.encode()[:2_000_000]))


def looped_file(work: Path, name: str) -> Path:
    return work / f"looped-{name.replace(' ', '-')}.pt"


def train_looped(work: Path, name: str, steps: int) -> None:
    """A decoder of bytes, by the next byte at its last cycle, or at each."""
    torch.manual_seed(0)
    model, data = LoopedDecoder(SIZES, BYTES, LAYERS, CYCLES), book()
    data, drawn = data[: len(data) * 19 // 20], torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, steps)
    for step in range(steps):
        starts = torch.randint(len(data) - PLACES - 1, (16,), generator=drawn)
        rows = torch.stack([data[start : start + PLACES + 1] for start in starts.tolist()])
        losses = looped_losses(model, rows)
        loss = torch.stack(losses if LOOPED[name] else losses[-1:]).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rates.step()
        if step % 100 == 0:
            print(name, step, f"{float(losses[-1].detach()):.3f}", flush=True)
    torch.save(model.state_dict(), looped_file(work, name))


def looped_losses(model: LoopedDecoder, rows: torch.Tensor) -> list[torch.Tensor]:
    """Cross entropy of the next byte after each cycle."""
    seen, places = causal(rows.shape[1] - 1), torch.arange(rows.shape[1] - 1)
    states, losses = model.embedding(rows[:, :-1]), []
    for _ in range(model.cycles):
        states = model.cycle(states, places, lambda _, q, k, v: attended(q, k, v, seen))
        losses.append(functional.cross_entropy(model.logits(states).mT, rows[:, 1:]))
    return losses


def run_speed(records: Records, given: argparse.Namespace) -> None:
    prompts = book()[-TEXTS * 2000 :].view(TEXTS, -1)[:, :PROMPT].tolist()
    for name in LOOPED:
        if not looped_file(given.work, name).is_file():
            continue
        model = LoopedDecoder(SIZES, BYTES, LAYERS, CYCLES).eval()
        model.load_state_dict(torch.load(looped_file(given.work, name)))
        for exit_after in (None, 1, 2, 3):
            for number, prompt in enumerate(prompts):
                arm = f"{name}, {'no exit' if exit_after is None else f'exit {exit_after}'}"
                for temperature in (0.0, 1.0):
                    if not records.has(arm, str(number), temperature):
                        pipeline = Pipeline(model, Sampling(temperature), exit_after)
                        records.add(arm, str(number), temperature, **piped(pipeline, prompt))


def piped(pipeline: Pipeline, prompt: Sequence[int]) -> Row:
    """Numbers of one text; the prompt's own readings are left out."""
    made = pipeline.write(prompt, WRITTEN)
    return {
        "tokens": WRITTEN - 1,
        "ticks": made.ticks - pipeline.model.cycles,
        "rows": made.rows - len(prompt) * pipeline.model.cycles,
        "right": made.right,
        "asked": WRITTEN,
    }


def speed_tables(rows: Sequence[Row]) -> Iterator[Table]:
    lines = []
    for name in names_of(rows):
        exits = name.rsplit(" ", 1)[1]
        early = int(exits) if exits.isdigit() else CYCLES
        for temperature in (0.0, 1.0):
            ticks = side(rows, name, "ticks", "tokens", temperature)
            by_formula = side(
                rows,
                name,
                lambda row, e=early: CYCLES * row["asked"] - (CYCLES - e) * row["right"],
                "asked",
                temperature,
            )
            lines.append(
                {
                    "trained by": f"{name}, T = {temperature:g}",
                    "right": str(figure(side(rows, name, "right", "asked", temperature))),
                    "readings of the weights per token": str(figure(ticks)),
                    "by the formula": str(figure(by_formula)),
                    "rows per token": str(figure(side(rows, name, "rows", "tokens", temperature))),
                }
            )
    yield f"SPEED: a looped decoder of {CYCLES} cycles", lines
