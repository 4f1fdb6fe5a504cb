"""Time of a step beside its forward pass, of learning from a pass, and of a question to a trained
head, each beside its bound.

    make bench-steps
    python -m benchmarks.step_parts run --model smollm2-135m --rounds 9
    python -m benchmarks.step_parts show

`auto` drafts ``NODES`` tokens in every step: further ones cost nothing by the curve that it is
given, and it never rests. A step's seconds less those that the library's clocks count in the target
and in the head are what is left outside. A pass that learns hands out hidden states and likeliest
tokens, and the sources take them in; it is timed in turns with passes over as many nodes of the
same text that hand out nothing. All parts are measured in each round, in turns. The bounds are of
smollm2-135m on a machine whose plain pass takes 2.7 ms. Nothing else should compute.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

import draftwood
from benchmarks.common.json_lines import RESULTS, append, grouped, newest, read
from benchmarks.common.scripts import parser_of, print_table
from draftwood import engine
from draftwood.costs.budget import Budget
from draftwood.drafters import Drafter, MultiSource, Nothing
from draftwood.engine import Options, run_all
from draftwood.models.native import NativeModel
from draftwood.native.step import NativeDraft, NativeStep, StepCaller
from draftwood.native.threads import threads, threads_set
from draftwood.sampling import Sampling
from draftwood.sources.merger import Merger
from draftwood.sources.trained_head import RANKS, TrainedHeadSource
from draftwood.verifiers import Match
from draftwood_bench.records.machine import processor
from draftwood_bench.run.describe import commit
from draftwood_bench.run.overhead import ROW_SECONDS, WINDOW, whole_rows

RECORDS = RESULTS / "step-parts.jsonl"
NODES = 4
PASS_SECONDS = 2.7e-3
"""Price of a pass over any tree, by which questions to the head pay or not."""
PROMPT = (
    "Once there was a fox, and the fox said to the hen: the hen said to the fox, once more. " * 12
)
LEARNING = f"pass that learns over a plain one, {NODES} drafted"
BOUNDS = {
    "outside, plain, T = 0": 0.05,
    "outside, plain, T = 1": 0.05,
    f"outside, auto of {NODES}, T = 0": 0.15,
    f"outside, auto of {NODES}, T = 1": 0.22,
    LEARNING: 1.03,
    "question to the head at the root": 0.25,
    "question to the head below": 0.15,
}
"""Milliseconds, and of passes that learn the ratio."""
PASS = "plain pass"
"""Part that the bounds go by; it has none."""


@dataclass(frozen=True)
class Measured:
    """A target, and what drafts for it.

    Attributes:
        auto: with a trained head.
        tokens: of the prompt.
        steps: of each text.
    """

    target: NativeModel
    auto: MultiSource
    tokens: Sequence[int]
    steps: int

    @classmethod
    def of(cls, name: str, steps: int) -> "Measured":
        """Load a model that has a head of its own.

        Raises:
            SystemExit: for one that does not run in C++, or for which no head is there.
        """
        lm = draftwood.load(name, method="auto")
        drafter: Any = lm.method.drafter
        if not isinstance(lm.model, NativeModel) or not _heads(drafter):
            raise SystemExit(f"{name} has no head that runs in C++; take smollm2-135m")
        return cls(lm.model, drafter, lm.encode(PROMPT), steps)

    def text(self, drafter: Drafter, temperature: float) -> engine.Sequence:
        options = Options(Sampling(temperature), 8 * NODES * self.steps, seed=0)
        text = engine.Sequence(self.target, drafter, Match(), self.tokens, options)
        text.tell_within = ROW_SECONDS
        return text

    @property
    def head(self) -> TrainedHeadSource:
        return _heads(self.auto)[0]


def _heads(drafter: Any) -> list[TrainedHeadSource]:
    sources = getattr(drafter, "sources", ())
    return [each for each in sources if isinstance(each, TrainedHeadSource)]


def of_four(auto: MultiSource) -> MultiSource:
    """Auto with ``NODES`` draft tokens in every tree, as long as anything proposes them."""
    sources: Any = tuple(
        replace(each, resting=None) if isinstance(each, TrainedHeadSource) else each
        for each in auto.sources
    )
    budget = Budget(lambda nodes: PASS_SECONDS, 0.0, 0.0, max_draft_tokens=NODES)
    return replace(auto, sources=sources, budget=budget)


@contextmanager
def without_rests() -> Iterator[None]:
    """Draft in every step, however little that gains."""
    with patch("draftwood.drafters.multi_source.BREAK_EVEN", 0.0):
        yield


def outside(measured: Measured, drafter: Drafter, temperature: float) -> tuple[float, float, float]:
    """Median milliseconds of a step outside target and head, of a pass, and draft tokens."""
    per_step, passes, drafted = list[float](), list[float](), list[int]()
    with without_rests():
        since = time.perf_counter()
        for _, step in run_all([measured.text(drafter, temperature)]):
            seconds = time.perf_counter() - since
            if not step.is_prefill:
                per_step.append(seconds - step.seconds["target"] - step.drafter_seconds)
                passes.append(step.seconds["target"])
                drafted.append(step.drafted)
            if len(per_step) == measured.steps:
                break
            since = time.perf_counter()
    means = whole_rows(per_step, min(WINDOW, measured.steps))
    return 1e3 * median(means), 1e3 * median(passes), median(drafted)


@contextmanager
def alternating() -> Iterator[dict[bool, list[NativeStep]]]:
    """Let rows of steps learn in turns, and keep the steps by whether they did."""
    kept: dict[bool, list[NativeStep]] = {False: [], True: []}
    native, result, learns = Merger.native, StepCaller.result, [False]

    def plain_in_turns(merger: Merger, *given: Any) -> NativeDraft:
        learns[0] = not learns[0]
        draft = native(merger, *given)
        return draft if learns[0] else replace(draft, hidden=(), ranks=0)

    def keep(caller: StepCaller, *given: Any) -> NativeStep:
        kept[learns[0]].append(result(caller, *given))
        return kept[learns[0]][-1]

    with patch.object(Merger, "native", plain_in_turns), patch.object(StepCaller, "result", keep):
        yield kept


def learning(measured: Measured, drafter: MultiSource) -> float:
    """Median of passes that learn over that of plain ones over as many nodes.

    Raises:
        SystemExit: for a text too short to have trees of ``NODES`` tokens in both.
    """
    with without_rests(), alternating() as kept:
        steps = (step for _, step in run_all([measured.text(drafter, 0.0)]) if not step.is_prefill)
        for _ in zip(range(measured.steps), steps, strict=False):
            pass
    taken = {
        learns: [
            step.seconds["target"] + (step.learn_seconds if learns else 0.0)
            for step in each
            if len(step.tokens) == 1 + NODES
        ]
        for learns, each in kept.items()
    }
    if not all(taken.values()):
        raise SystemExit(f"no step drafted {NODES} tokens; give more --steps")
    return median(taken[True]) / median(taken[False])


def questions(measured: Measured, count: int) -> tuple[float, float]:
    """Median milliseconds of a question to the head at the root, and below it, a row each."""
    head, random = measured.head.head, np.random.default_rng(0)
    session = head.start(min(RANKS, head.vocab_size), 0.0, None)
    tokens = list(measured.tokens)
    shape = (len(tokens), head.shape.reads, head.shape.hidden)
    states = random.normal(size=shape).astype(np.float32)
    session.take(states, tokens)
    at_root, below = list[float](), list[float]()
    for number in range(count):
        token = tokens[number % len(tokens)]
        since = time.perf_counter()
        session.take(states[:1], [token])
        middle = time.perf_counter()
        session.level([-1], [session.found.tokens[0]])
        below.append(time.perf_counter() - middle)
        at_root.append(middle - since)
        session.keep(len(tokens))
    return 1e3 * median(at_root), 1e3 * median(below)


def once(measured: Measured) -> dict[str, float]:
    """Measure every part, by its name; milliseconds, of learning the ratio."""
    found: dict[str, float] = {}
    for temperature in (0, 1):
        name = f"outside, plain, T = {temperature}"
        found[name], found[PASS], _ = outside(measured, Nothing(), float(temperature))
    drafter = of_four(measured.auto)
    for temperature in (0, 1):
        name = f"outside, auto of {NODES}, T = {temperature}"
        found[name], _, drafted = outside(measured, drafter, float(temperature))
        if drafted != NODES:
            raise SystemExit(f"auto drafts {drafted} tokens in most steps, not {NODES}")
    found[LEARNING] = learning(measured, drafter)
    at_root, below = questions(measured, measured.steps)
    found["question to the head at the root"], found["question to the head below"] = at_root, below
    return found


def run(name: str, rounds: int, steps: int, output: Path) -> None:
    """Measure all parts in turns, and record each round but the first, which warms up."""
    measured = Measured.of(name, steps)
    facts = {"model": name, "threads": threads(), "processor": processor(), "commit": commit()}
    for number in range(rounds + 1):
        found = once(measured)
        for part, value in found.items() if number else ():
            append(output, {**facts, "part": part, "round": number, "value": value})
        print(f"round {number} of {rounds}", flush=True)


def rows(output: Path) -> list[dict[str, str]]:
    """Medians of the newest run of each model, beside their bounds."""
    found = []
    for (model, part), each in grouped(newest(read(output), "model"), "model", "part").items():
        value, bound = median(record["value"] for record in each), BOUNDS.get(part)
        unit = "" if part == LEARNING else " ms"
        told = "" if bound is None else f"{bound:.2f}{unit}"
        found.append(
            {"model": model, "part": part, "median": f"{value:.3f}{unit}", "at most": told}
        )
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("act", choices=("run", "show"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--output", type=Path, default=RECORDS)
    given = parser.parse_args()
    if given.act == "run":
        with threads_set(given.threads):
            run(given.model, given.rounds, given.steps, given.output)
    print_table(rows(given.output), "### Parts of a step")


if __name__ == "__main__":
    main()
