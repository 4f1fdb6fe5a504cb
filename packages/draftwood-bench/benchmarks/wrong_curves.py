"""Measure the speed of `auto` with wrong curves, over its speed with the right one.

    python -m benchmarks.wrong_curves [--model smollm2-135m] [--temperature 1]

Every curve starts a calibration of its own and takes its turn at each prompt, so that a noisy
moment hurts all alike. The first 300 steps do not count. One row for each curve: the same
texts' tokens a second with it over those with the right one, where it follows passes and where it
stays as it was; 0.97 and more passes.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import draftwood
from draftwood.costs.calibration import Calibration
from draftwood.costs.curve import FULL, Curve, measure
from draftwood.costs.disturbance import watched
from draftwood.costs.following import Following
from draftwood.stats import Step
from draftwood.text.language_model import LanguageModel

PROMPTS = (
    "What are the months of the year?",
    "Write a short story about a fox and a river.",
    "Explain how rain forms.",
    "List ten animals and one fact about each.",
    "Write a Python function that adds two numbers, then one that multiplies them.",
    "Describe a day in the life of a baker.",
    "Name five countries and their capitals.",
    "Give me a recipe for bread.",
)


def rising(size: int) -> float:
    """From 0.3 for one node to 3 for 32 and more."""
    return 0.3 * 10 ** min(1.0, math.log(size) / math.log(32))


BENDS: dict[str, Callable[[int], float]] = {
    "right": lambda size: 1.0,
    "x 0.3": lambda size: 0.3,
    "x 3": lambda size: 3.0,
    "trees x 3": lambda size: 3.0 if size > 1 else 1.0,
    "trees x 0.3": lambda size: 0.3 if size > 1 else 1.0,
    "one node x 3": lambda size: 3.0 if size == 1 else 1.0,
    "0.3 to 3": rising,
    "3 to 0.3": lambda size: 0.9 / rising(size),
}


@dataclass
class Way:
    """Texts by one curve, and what they took after the warm-up."""

    lm: LanguageModel
    warm_up: int
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    texts: list[str] = field(default_factory=list)

    def write(self, prompt: str, tokens: int, temperature: float) -> None:
        stream = self.lm.stream(
            prompt, max_new_tokens=tokens, temperature=temperature, seed=0, ignore_eos=True
        )
        self.texts.append("".join(stream))
        for step in stream.steps:
            self.count(step)

    def count(self, step: Step) -> None:
        if step.is_prefill:
            return
        self.steps += 1
        if self.steps > self.warm_up:
            self.tokens += len(step.tokens)
            self.seconds += sum(step.seconds.values())

    @property
    def speed(self) -> float:
        if not self.seconds:
            raise SystemExit(f"no text goes on after {self.warm_up} steps; raise --tokens")
        return self.tokens / self.seconds


def way_of(plain: LanguageModel, curve: Curve, follows: bool, warm_up: int) -> Way:
    own = Calibration(plain.model)
    own.use(Following(curve) if follows else curve)
    lm = LanguageModel(
        *(plain.model, plain.tokenizer, plain.method, plain.name),
        *(own, plain.prior, plain.grammars),
    )
    return Way(lm.with_method("auto"), warm_up)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=160, help="of each text")
    parser.add_argument("--rounds", type=int, default=1, help="over the prompts")
    parser.add_argument("--warm-up", type=int, default=300, help="steps that do not count")
    given = parser.parse_args()
    plain = draftwood.load(given.model, method="plain")
    right = watched(plain.model, lambda: measure(plain.model, FULL, seconds=10.0))
    if right.busy:
        print("other programs kept the CPU busy; measure again when they are done")
    wrong = {
        name: Curve.fit({size: right.curve(size) * bend(size) for size in FULL})
        for name, bend in BENDS.items()
    }
    ways = {
        (name, follows): way_of(plain, curve, follows, given.warm_up)
        for name, curve in wrong.items()
        for follows in (True, False)
    }
    for _ in range(given.rounds):
        for prompt in PROMPTS:
            for way in ways.values():
                way.write(prompt, given.tokens, given.temperature)
    first = ways["right", True]
    assert all(way.texts == first.texts for way in ways.values())
    print(f"{given.model}, temperature {given.temperature:g}, right: {first.speed:.1f} tokens/s")
    print(f"{'curve':16}{'follows':>9}{'stays':>9}")
    for name in BENDS:
        cells = (ways[name, follows].speed / first.speed for follows in (True, False))
        print(f"{name:16}" + "".join(f"{cell:9.3f}" for cell in cells))


if __name__ == "__main__":
    main()
