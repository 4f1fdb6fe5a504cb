"""Texts of two table models have the distribution that each rule says, enumerated."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from draftwood_choices.collaboration.passages import FOLLOWER, LEADER
from draftwood_choices.collaboration.rule import CollaborationRule
from draftwood_choices.collaboration.rules import (
    EntropySwitch,
    FirstTokens,
    FixedScore,
    Foreal,
    Oracle,
    RandomTurns,
    StepRouter,
    steps,
)
from draftwood_choices.collaboration.rules.step_router import StepWeights
from draftwood_choices.collaboration.writer import LocalWriter
from writers import BREAK, DOT, LENGTH, ForgetfulWriter, bits, p_value, probs

SIGNIFICANCE = 1e-4
STEP = 2  # tokens of the longest step here, so that all steps can be enumerated
pytestmark = pytest.mark.usefixtures("unchecked", "short_steps")


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "LONGEST", STEP)


def foreal(rng: Any, n: int, p: float) -> tuple[int, ...]:
    text = list[int]()
    while len(text) < LENGTH:
        led, begun, ended = rng.accept(p), len(text), False
        while not ended and len(text) < LENGTH:
            writer = LEADER if led and len(text) - begun < n else FOLLOWER
            text.append(rng.draw(probs(writer, text)))
            said = [token for token in text[begun:-1] if token != BREAK]
            ended = text[-1] in (DOT, BREAK) and bool(said)
    return tuple(text)


def entropy_switch(rng: Any, tau: float, window: int, least: int) -> tuple[int, ...]:
    text, seen, writer, count = list[int](), list[float](), FOLLOWER, 0
    while len(text) < LENGTH:
        seen.append(bits(writer, text))
        text.append(rng.draw(probs(writer, text)))
        count += 1
        mean = sum(seen[-window:]) / len(seen[-window:])
        wanted = LEADER if mean > tau else FOLLOWER
        if count >= least and wanted != writer:
            writer, count = wanted, 0
    return tuple(text)


def step(rng: Any, writer: str, before: list[int]) -> list[int]:
    found = list[int]()
    while len(found) < min(STEP, LENGTH - len(before)):
        found.append(rng.draw(probs(writer, [*before, *found])))
        # two line breaks behind some text would end it; it holds no more than two tokens
    return found


def mean_logprob(writer: str, before: list[int], found: list[int]) -> float:
    return sum(
        math.log(probs(writer, [*before, *found[:place]])[token])
        for place, token in enumerate(found)
    ) / len(found)


def routed(rng: Any, rewrites: Callable[[list[int], list[int]], bool]) -> tuple[int, ...]:
    text = list[int]()
    while len(text) < LENGTH:
        found = step(rng, FOLLOWER, text)
        if rewrites(text, found):
            found = step(rng, LEADER, text)
        text += found
    return tuple(text)


def oracle(rng: Any) -> tuple[int, ...]:
    text = list[int]()
    while len(text) < LENGTH:
        mine, theirs = step(rng, FOLLOWER, text), step(rng, LEADER, text)
        better = mean_logprob(LEADER, text, theirs) > mean_logprob(LEADER, text, mine) + 1e-6
        text += theirs if better else mine
    return tuple(text)


def random_turns(rng: Any, share: float, length: int) -> tuple[int, ...]:
    text = list[int]()
    while len(text) < LENGTH:
        writer = LEADER if rng.accept(share) else FOLLOWER
        for _ in range(min(length, LENGTH - len(text))):
            text.append(rng.draw(probs(writer, text)))
    return tuple(text)


def first_n(rng: Any, n: int) -> tuple[int, ...]:
    text = list[int]()
    while len(text) < LENGTH:
        text.append(rng.draw(probs(LEADER if len(text) < n else FOLLOWER, text)))
    return tuple(text)


def unsure(text: list[int], found: list[int]) -> bool:
    return mean_logprob(FOLLOWER, text, found) < -1.0


BY_MEAN = StepWeights((-100.0, 0.0, 0.0, 0.0, 0.0, 0.0), -100.0)
"""A router that is certain on either side of a mean log-probability of -1."""

CASES: dict[str, tuple[CollaborationRule, Callable[[Any], tuple[int, ...]]]] = {
    "foreal": (Foreal(1, 1.0), lambda rng: foreal(rng, 1, 1.0)),
    "foreal, sometimes": (Foreal(2, 0.4), lambda rng: foreal(rng, 2, 0.4)),
    "entropy-switch": (EntropySwitch(1.0, 2, 1), lambda rng: entropy_switch(rng, 1.0, 2, 1)),
    "step-router": (StepRouter(0.5, BY_MEAN), lambda rng: routed(rng, unsure)),
    "fixed-score": (FixedScore(-1.0), lambda rng: routed(rng, unsure)),
    "oracle": (Oracle(1e-6), oracle),
    "random": (RandomTurns(0.3, 2), lambda rng: random_turns(rng, 0.3, 2)),
    "first-n": (FirstTokens(2), lambda rng: first_n(rng, 2)),
}


@pytest.mark.parametrize("case", CASES)
def test_texts_have_the_enumerated_distribution(case: str) -> None:
    assert p_value(*CASES[case]) >= SIGNIFICANCE


@pytest.mark.parametrize("case", ["foreal", "entropy-switch", "random", "first-n"])
def test_a_writer_that_forgets_to_catch_up_is_caught(case: str) -> None:
    assert p_value(*CASES[case], kind=ForgetfulWriter) < SIGNIFICANCE


def test_another_knob_is_caught() -> None:
    """The comparison sees a rule that is not the one that is enumerated."""
    assert p_value(Foreal(2, 0.6), CASES["foreal, sometimes"][1]) < SIGNIFICANCE


def test_turns_that_draw_the_same_noise_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def same_seed(self: Any, passages: Any, most: int, seed: int, reads: bool) -> Any:
        return write(self, passages, most, 7, reads)

    write = LocalWriter.write
    monkeypatch.setattr(LocalWriter, "write", same_seed)
    assert p_value(*CASES["random"]) < SIGNIFICANCE
