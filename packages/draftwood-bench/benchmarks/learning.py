"""Gain of a head that learns while it serves: one new task, and controls.

    python -m benchmarks.learning run       # all arms, each resumable; then the table
    python -m benchmarks.learning latency   # seconds of requests, with and without learning between

Each arm lets a fresh head learn from the same requests. ``task`` asks them in one order, ``other
order`` in another one. ``shuffled`` gives the learner states that belong to other rows: what it
gains then it has from tokens alone. ``shuffled answers`` gives it the target's answers at other
rows too, and must gain nothing. The first token is judged on further requests of the task and on
everyday prompts, all answered greedily before anything is learnt: the share of places where the
head's likeliest token is the target's. Tokens per pass come from decoding both sets before and
after.
"""

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

import draftwood
from benchmarks.common.json_lines import RESULTS, append, read
from benchmarks.common.scripts import print_table
from draftwood.learning.idle import IdleGate
from draftwood.learning.learning import Learning
from draftwood.learning.texts import WatchedText
from draftwood.storage.data_sets import DataFile
from draftwood_bench.plan.prompts import load_prompts

TASK = 'Give the people, things and colours of this sentence as a JSON object: "{}"'
SENTENCES = "multi30k/train.en.gz"
ARMS = ("task", "other order", "shuffled", "shuffled answers")
ROUND = 25
"""Requests after which the head catches up, as in an idle moment."""


@dataclass(frozen=True)
class Plan:
    """Sizes of a run.

    Attributes:
        requests: that are learnt from.
        judged: further requests of the task, and everyday prompts, on which the head is judged.
        tokens: most of an answer.
    """

    model: str
    requests: int
    judged: int
    tokens: int

    def prompts(self) -> tuple[list[str], list[str], list[str]]:
        """Requests to learn from, further ones of the task, and everyday prompts."""
        sentences = DataFile.named(SENTENCES, "or name another folder").lines()
        chosen = random.Random(0).sample(sentences, self.requests + self.judged)
        task = [TASK.format(each) for each in chosen]
        everyday = [each.turns[0] for each in load_prompts("built-in").prompts[: self.judged]]
        return task[: self.requests], task[self.requests :], everyday


def answer(lm: draftwood.LanguageModel, prompts: Sequence[str], tokens: int) -> float:
    """Answer prompts greedily; gives the tokens per pass."""
    results = [lm.generate(each, max_new_tokens=tokens, temperature=0.0) for each in prompts]
    return mean(result.stats.block_efficiency for result in results)


def watched(
    lm: draftwood.LanguageModel, learning: Learning, prompts: Sequence[str], tokens: int
) -> tuple[list[WatchedText], float]:
    """The rows of answers, which teach nothing, and the tokens per pass."""
    collector = Learning(lm.model, learning.trained, learning.learner, round_rows=10**12)
    lm.learning = collector
    try:
        efficiency = answer(lm, prompts, tokens)
    finally:
        lm.learning = learning
        collector.close()
    return collector.buffer.texts, efficiency


def shuffled(text: WatchedText, drawn: np.random.Generator, answers: bool) -> WatchedText:
    """The same text with states of other rows, and with answers of others where asked for."""
    final = text.final.copy()
    if answers:
        final[text.answer :] = drawn.permutation(final[text.answer :])
    return replace(text, states=drawn.permutation(text.states), final=final)


def run_arm(arm: str, plan: Plan) -> dict[str, Any]:
    """Let a fresh head learn from all requests; gives the figures before and after."""
    lm = draftwood.load(plan.model, method="auto")
    requests, task, everyday = plan.prompts()
    if arm == "other order":
        random.Random(1).shuffle(requests)
    gate = IdleGate()
    gate.enter()  # it learns in the foreground alone
    learning = lm.learn(round_rows=10**12, gate=gate)
    if arm.startswith("shuffled"):
        take, drawn, answers = learning.take, np.random.default_rng(0), arm.endswith("answers")
        learning.take = lambda text: take(shuffled(text, drawn, answers))  # type: ignore[method-assign]
    judged = {"task": task, "everyday": everyday}
    sets = {name: watched(lm, learning, each, plan.tokens) for name, each in judged.items()}
    before = {name: _figures(learning, *each) for name, each in sets.items()}
    since = time.monotonic()
    for first in range(0, len(requests), ROUND):
        answer(lm, requests[first : first + ROUND], plan.tokens)
        learning.catch_up()
        print(f"{arm}: {first + ROUND} requests, {learning.status}", flush=True)
    seconds = time.monotonic() - since
    passes = {name: watched(lm, learning, each, plan.tokens)[1] for name, each in judged.items()}
    after = {name: _figures(learning, sets[name][0], passes[name]) for name in judged}
    status = learning.status
    learning.close()
    counts = {name: getattr(status, name) for name in ("rows", "steps", "swaps", "drops")}
    return {**_key(arm, plan), **counts, "seconds": seconds, "before": before, "after": after}


def _figures(learning: Learning, texts: list[WatchedText], passes: float) -> dict[str, float]:
    found = learning.learner.judge(learning.trained.weights, texts, lambda: None).mean(0)
    return {"overlap": found[0], "first token": found[1], "tokens per pass": passes}


def _key(arm: str, plan: Plan) -> dict[str, Any]:
    sizes = {"requests": plan.requests, "judged": plan.judged, "tokens": plan.tokens}
    return {"arm": arm, "model": plan.model, **sizes}


def rows(records: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """A line for each arm and set."""
    table = []
    for record in records:
        for name, old in record["before"].items():
            new, line = record["after"][name], {"arm": record["arm"], "prompts": name}
            for figure in ("first token", "overlap", "tokens per pass"):
                gain = new[figure] - old[figure]
                line[figure] = f"{old[figure]:.3f} to {new[figure]:.3f} ({gain:+.3f})"
            line["rounds"] = f"{record['swaps']} swaps, {record['drops']} drops"
            line["steps, s"] = f"{record['steps']}, {record['seconds']:.0f}"
            table.append(line)
    return table


def run(plan: Plan, output: Path) -> None:
    """Run the arms that have no record yet, and print the table."""
    for arm in ARMS:
        if not any(_key(arm, plan).items() <= record.items() for record in read(output)):
            append(output, run_arm(arm, plan))
    keys = [_key(arm, plan).items() for arm in ARMS]
    found = [record for record in read(output) if any(key <= record.items() for key in keys)]
    print_table(rows(found), f"{plan.requests} requests of one task, {plan.model}")


def latency(plan: Plan, rounds: int) -> None:
    """Compare seconds of requests, with learning in the gaps between them and without, in turns."""
    lm, gate = draftwood.load(plan.model, method="auto"), IdleGate()
    learning = lm.learn(round_rows=256, gate=gate)
    requests, *_ = plan.prompts()
    answer(lm, requests[:10], plan.tokens)
    taken: dict[bool, list[float]] = {False: [], True: []}
    gaps = random.Random(0)
    for number in range(2 * rounds):
        learns, prompt = number % 2 == 1, requests[number // 2 % len(requests)]
        lm.learning = learning if learns else None
        if not learns:
            gate.enter()
        time.sleep(0.3 + 0.7 * gaps.random())
        since = time.perf_counter()
        lm.generate(prompt, max_new_tokens=plan.tokens, temperature=0.0, ignore_eos=True)
        taken[learns].append(time.perf_counter() - since)
        if not learns:
            gate.leave()
    ratios = [new / old for old, new in zip(taken[False], taken[True], strict=True)]
    line = {
        "without, s": f"{mean(taken[False]):.3f}",
        "with, s": f"{mean(taken[True]):.3f}",
        "median of ratios": f"{median(ratios):.3f}",
        "ratio of means": f"{mean(taken[True]) / mean(taken[False]):.3f}",
        "learning": str(learning.status),
    }
    learning.close()
    print_table([line], f"{rounds} pairs of requests, {plan.model}")


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("act", choices=("run", "latency"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--judged", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=60, help="pairs of requests for latency")
    parser.add_argument("--output", type=Path, default=RESULTS / "learning.jsonl")
    given = parser.parse_args()
    plan = Plan(given.model, given.requests, given.judged, given.tokens)
    if given.act == "latency":
        latency(plan, given.rounds)
    else:
        run(plan, given.output)


if __name__ == "__main__":
    main()
