"""Training of a step router: what the oracle sees, and a logistic regression on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from draftwood_choices.collaboration.rules.oracle import Oracle
from draftwood_choices.collaboration.rules.step_router import FEATURES, StepWeights, features
from draftwood_choices.collaboration.rules.steps import StepSeen

FEWEST = 20
"""Steps of which a router can be learnt."""
RIDGE, ROUNDS = 1.0, 50
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
    weights, bias = _fitted(np.array([values for values, _ in learnt]), labels)
    found = StepWeights(weights, bias)
    about: dict[str, Any] = {"steps": len(learnt), "leader better": float(labels.mean())}
    about |= {"steps held out": len(held), "AUC held out": auc(found, held, tau), "tau": tau}
    return StepWeights(weights, bias, about)


def auc(
    router: StepWeights, steps: Sequence[tuple[list[float], float]], tau: float
) -> float | None:
    """Probability that a step which the leader betters is ranked before one that it does not.

    None where there are not both.
    """
    scores = np.array([router.probability(values) for values, _ in steps])
    better = np.array([advantage > tau for _, advantage in steps], bool)
    if not better.any() or better.all():
        return None
    over = scores[better][:, None] - scores[~better][None]
    return float((over > 0).mean() + (over == 0).mean() / 2)


def _fitted(
    values: Float[np.ndarray, "steps features"], labels: Float[np.ndarray, " steps"]
) -> tuple[tuple[float, ...], float]:
    """Weights and bias by Newton's method on standardised features."""
    mean, spread = values.mean(0), values.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    rows = np.column_stack([(values - mean) / spread, np.ones(len(values))])
    share = labels.mean()
    importance = np.where(labels > 0, 0.5 / share, 0.5 / (1 - share))
    ridge = np.diag([RIDGE] * len(FEATURES) + [0.0])
    found = np.zeros(rows.shape[1])
    for _ in range(ROUNDS):
        chances = 1 / (1 + np.exp(-rows @ found))
        slope = rows.T @ (importance * (labels - chances)) - ridge @ found
        curve = (rows.T * (importance * chances * (1 - chances))) @ rows + ridge
        step = np.linalg.solve(curve, slope)
        found += step
        if np.abs(step).max() < 1e-9:
            break
    weights = found[:-1] / spread
    return tuple(weights.tolist()), float(found[-1] - weights @ mean)
