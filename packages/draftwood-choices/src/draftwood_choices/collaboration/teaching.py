"""Training of a step router: what the oracle sees, and a logistic regression on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from draftwood_choices.collaboration.rules.oracle import Oracle
from draftwood_choices.collaboration.rules.step_router import StepWeights, features
from draftwood_choices.collaboration.rules.steps import StepSeen
from draftwood_choices.logistic import auc, fitted

FEWEST = 20
"""Steps of which a router can be learnt."""
RIDGE = 1.0
HELD_OUT = 5  # one text of so many is kept to judge by


@dataclass(frozen=True)
class RouterTeacher(Oracle):
    """The oracle, which remembers each step's features and the leader's advantage, in nats."""

    name: ClassVar[str] = "router-teacher"
    seen: list[tuple[list[float], float]] = field(default_factory=list)

    def note(self, step: StepSeen, advantage: float) -> None:
        self.seen.append((features(step), advantage))


def trained(texts: Sequence[Sequence[tuple[list[float], float]]], tau: float = 0.0) -> StepWeights:
    """Learn when the leader's step is better by more than ``tau`` nats.

    Both outcomes weigh the same, as the paper balances them. Every fifth text is held out: the
    router's ``about`` tells how often it ranks a better step first there (AUC).

    Args:
        texts: what a teacher saw of each.

    Raises:
        ValueError: for too few steps, or where one writer is always better.
    """
    learnt = [each for place, text in enumerate(texts) if place % HELD_OUT for each in text]
    held = [each for place, text in enumerate(texts) if not place % HELD_OUT for each in text]
    labels = np.array([advantage > tau for _, advantage in learnt], np.float64)
    if len(learnt) < FEWEST or labels.min(initial=1) == labels.max(initial=0):
        raise ValueError(
            f"a router learns from at least {FEWEST} steps of which some are the leader's to write"
            f" and some are not; {int(labels.sum())} of {len(learnt)} are. Give more prompts, or"
            " longer texts"
        )
    weights, bias = fitted(np.array([values for values, _ in learnt]), labels, RIDGE, balanced=True)
    weights = tuple(weights.tolist())
    found = StepWeights(weights, bias)
    about: dict[str, Any] = {"steps": len(learnt), "leader better": float(labels.mean())}
    scores = [found.probability(values) for values, _ in held]
    ranked = auc(scores, [advantage > tau for _, advantage in held])
    about |= {"steps held out": len(held), "AUC held out": ranked, "tau": tau}
    return StepWeights(weights, bias, about)
