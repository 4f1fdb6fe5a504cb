"""Rules by which two models write one text, at knobs that were chosen on other questions.

    pip install 'draftwood-choices[bench]'
    cd packages/draftwood-bench && python -m benchmarks.two_writers FOLDER [--model FOLLOWER]

Asks GSM8K's training questions, SVAMP's, and MBPP's tasks, whose tests run. Of each set the first
questions teach the router, the next ones choose every rule's knob, and those behind them are
measured. A rule's knob is the one with the most right answers among those that let the leader write
at most half of what it writes alone. Beside each rule stands a control that gives the leader as
large a share at random places. Everything is greedy, and answers share passes. A stopped run goes
on in its folder.
"""

import argparse
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import draftwood
from benchmarks.search_sums import cost_ratio
from draftwood.loading.vocabulary import vocabulary_digest
from draftwood.sampling_params import SamplingParams
from draftwood.text.language_model import LanguageModel
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.plan.prompts import load_prompts
from draftwood_bench.records.statistics import Estimate, difference
from draftwood_choices.collaboration.rules.step_router import StepWeights, with_router
from draftwood_choices.frontier.points import AnswerRecord, controls_of, swept
from draftwood_choices.frontier.router_course import RouterCourse
from draftwood_choices.frontier.run import Frontier, Rules, sharing
from draftwood_choices.frontier.table import leader_written, table

SETS = ("gsm8k", "svamp", "mbpp-run")
TAUGHT, CHOSEN, MEASURED = 20, 20, 100
"""Questions of each set."""
LONGEST, TOGETHER = 400, 48
"""Tokens of an answer; answers in shared passes."""
HALF, KEPT, OF_ORACLE = 0.5, 0.9, 0.6
"""Bars: leader's tokens, its accuracy, and the router's part of the oracle's gain."""
KNOBS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "foreal": ("n", (3, 5, 8)),
    "entropy-switch": ("tau", (0.25, 0.5, 0.8)),
    "step-router": ("tau", (0.5, 0.65)),
    "oracle": ("tau", (0.05,)),
}
LEADER, FOLLOWER = "leader alone", "follower alone"

Records = Sequence[AnswerRecord]


def questions(first: int, count: int) -> list[Prompt]:
    """Questions of every set from a place on, in turns."""
    sets = [load_prompts(name).prompts[first : first + count] for name in SETS]
    return list(chain(*zip(*sets, strict=True)))


def taught(file: Path, leader: LanguageModel, follower: LanguageModel) -> Path:
    """The router's file, which is learnt where it is missing."""
    if not file.exists():
        params = SamplingParams(max_new_tokens=LONGEST)
        RouterCourse(leader, follower, questions(0, TAUGHT), params, together=TOGETHER).learn(file)
    return file


def rules_of(router: Path, meets_at_tokens: bool) -> dict[str, Rules]:
    """Rules by their names, at each value of their knobs."""
    found: dict[str, Rules] = {}
    for name, (knob, values) in KNOBS.items():
        points: Rules = swept(name, knob, values)
        if name == "step-router":
            points = {point: with_router(rule, router) for point, rule in points.items()}
        if meets_at_tokens or not any(each.meets_at_tokens for each in points.values()):
            found[name] = points
    return found


def at_random(point: str, records: Records) -> Rules:
    """The control of a point that gives the leader its share at random places."""
    found = controls_of(point, list(of(records, point).values()))
    return {name: rule for name, rule in found.items() if name.startswith("random")}


def spent(name: str, records: Records) -> float:
    """Tokens of the leader; the oracle's are those of the text, as it writes every step."""
    kept = name == "oracle"
    return sum(each.leader_tokens if kept else leader_written(each) for each in records)


def of(records: Records, point: str) -> dict[str, AnswerRecord]:
    """Answers of a point, by prompt."""
    return {each.prompt: each for each in records if each.point == point}


def complete(records: Records) -> list[AnswerRecord]:
    """Answers to the questions that all points have answered."""
    points = {each.point for each in records}
    asked = {each.prompt for each in records}
    common = {name for name in asked if len(points) == sum(e.prompt == name for e in records)}
    return [each for each in records if each.prompt in common]


def chosen(records: Records, rules: Mapping[str, Rules]) -> dict[str, str]:
    """The point of each rule that is to be measured."""
    alone = spent(LEADER, list(of(records, LEADER).values()))
    found = {}
    for name, points in rules.items():
        by_point = {point: list(of(records, point).values()) for point in points}
        costs = {point: spent(name, own) / alone for point, own in by_point.items()}
        right = {point: sum(each.quality for each in own) for point, own in by_point.items()}
        fitting = [point for point in points if costs[point] <= HALF]
        found[name] = (
            max(fitting, key=lambda point: (right[point], -costs[point]))
            if fitting
            else min(points, key=lambda point: costs[point])
        )
    return found


@dataclass(frozen=True)
class Kept:
    """Share of the leader that a rule keeps, over the questions that the rule has answered.

    Attributes:
        right: share of right answers.
        accuracy: right answers over the leader's.
        tokens: that the leader writes, over those that it writes alone.
        caught_up: tokens that were read of what the other wrote, over the same.
        over_random: right answers more than at random places; None without that control.
    """

    right: Estimate
    accuracy: Estimate
    tokens: Estimate
    caught_up: Estimate
    over_random: Estimate | None


def kept(point: str, records: Records) -> Kept:
    """Compare a point with the leader alone and with its control, in pairs."""
    own, alone = of(records, point), of(records, LEADER)
    leader = {name: each for name, each in alone.items() if name in own}
    control, name = of(records, f"random at {point}'s share"), point.partition(",")[0]
    written, right = _written(leader), _right(own, leader)
    return Kept(
        difference(np.array(right)),
        cost_ratio(right, _right(leader, leader)),
        cost_ratio([spent(name, [own[each]]) for each in leader], written),
        cost_ratio([own[each].caught_up for each in leader], written),
        _more(own, control) if control else None,
    )


def told(point: str, records: Records) -> str:
    """Say what a rule keeps of the leader's accuracy, for how many of its tokens."""
    found = kept(point, records)
    line = (
        f"{point}: {found.accuracy} of the leader's accuracy with {found.tokens} of its tokens;"
        f" {found.caught_up} read"
    )
    if found.over_random:
        line += f"; over random {found.over_random}"
    holds = found.tokens.value <= HALF and found.accuracy.value >= KEPT
    return line + f". Nine tenths for half: {'holds' if holds else 'does not hold'}"


def of_oracle(router: str, oracle: str, records: Records) -> str:
    """Say how much of the oracle's gain over the follower the router has."""
    follower, own, best = (of(records, point) for point in (FOLLOWER, router, oracle))
    gains = [sum(_right(each, follower)) - sum(_right(follower, follower)) for each in (own, best)]
    if gains[1] <= 0:
        return f"the oracle's gain over the follower is {_more(best, follower)}, so it has no part"
    part = gains[0] / gains[1]
    verdict = "holds" if part >= OF_ORACLE else "does not hold"
    return (
        f"the router has {part:.2f} of the oracle's gain ({_more(own, follower)} of"
        f" {_more(best, follower)}). Six tenths: {verdict}"
    )


def _right(answers: Mapping[str, AnswerRecord], order: Mapping[str, Any]) -> list[float]:
    return [answers[each].quality for each in order]


def _written(answers: Mapping[str, AnswerRecord]) -> list[float]:
    return [float(leader_written(each)) for each in answers.values()]


def _more(one: Mapping[str, AnswerRecord], other: Mapping[str, AnswerRecord]) -> Estimate:
    return difference(np.array([one[each].quality - other[each].quality for each in other]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--leader", default="qwen2.5-coder-1.5b")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="the follower")
    parser.add_argument("--choose", action="store_true", help="end where knobs are chosen")
    given = parser.parse_args()
    leader, lm = (
        sharing(draftwood.load(each, method="plain")) for each in (given.leader, given.model)
    )
    given.folder.mkdir(parents=True, exist_ok=True)
    router = taught(given.folder / "router.json", leader, lm)
    rules = rules_of(router, len({vocabulary_digest(each.tokenizer) for each in (leader, lm)}) == 1)
    params = SamplingParams(max_new_tokens=LONGEST, temperature=0.0, seed=0)
    weights = StepWeights.load(router).weights
    settings = {"leader": leader.name, "follower": lm.name, "sets": SETS, "router": weights}

    def measured(points: Rules, prompts: Sequence[Prompt], name: str) -> Records:
        folder = given.folder / name
        run = Frontier(leader, lm, points, prompts, params, folder, TOGETHER, lambda *_: {})
        records = run.run({**settings, "longest": LONGEST})
        print("\n".join("  ".join(map(str, row)) for row in table(records).rows), flush=True)
        return records

    every = {point: rule for points in rules.values() for point, rule in points.items()}
    tried = measured(every, questions(TAUGHT, CHOSEN), "chosen")
    best = chosen(tried, rules)
    print(f"chosen: {', '.join(best.values())}")
    if given.choose:
        return
    prompts, oracle = questions(TAUGHT + CHOSEN, MEASURED), best.pop("oracle")
    points = {point: every[point] for point in best.values()}
    beside = [at_random(point, tried) for point in points]
    records = complete(measured({**points, **ChainMap(*map(dict, beside))}, prompts, "measured"))
    for point in best.values():
        print(told(point, records))
    records = complete(measured({oracle: every[oracle]}, prompts, "measured"))
    print(of_oracle(best["step-router"], oracle, records))


if __name__ == "__main__":
    main()
