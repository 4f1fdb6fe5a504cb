"""Step router: the leader writes a step again where it is expected to do it better."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from draftwood.methods.knobs import knob
from draftwood.storage.atomic import write_file
from draftwood_choices.collaboration.passages import LEADER
from draftwood_choices.collaboration.rule import CollaborationRule, Course
from draftwood_choices.collaboration.rules.steps import StepSeen, StepsWritten

FEATURES = (
    *("mean log-probability", "least log-probability", "mean entropy"),
    *("step", "leader's share", "leader before"),
)
"""Numbers that a router reads of a step."""


def features(step: StepSeen) -> list[float]:
    """Read the follower's log-probabilities and entropy, the step's number and who wrote before."""
    led = [float(each == LEADER) for each in step.writers]
    return [
        step.mean_logprob,
        min(step.logprobs, default=0.0),
        step.mean_entropy,
        math.log1p(len(led)),
        sum(led) / max(1, len(led)),
        led[-1] if led else 0.0,
    ]


@dataclass(frozen=True)
class StepWeights:
    """Logistic regression on features of a step.

    Attributes:
        weights: of ``FEATURES``, each as it is.
        bias: beside them.
        about: where they come from.
    """

    weights: tuple[float, ...] = (-1.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    bias: float = -1.0
    about: Mapping[str, Any] = field(default_factory=dict)

    def probability(self, values: Sequence[float]) -> float:
        """Probability that the leader's step is better."""
        score = self.bias + sum(w * x for w, x in zip(self.weights, values, strict=True))
        return 1.0 / (1.0 + math.exp(-max(-700.0, min(700.0, score))))

    def save(self, file: Path) -> None:
        """Write the router, whole or not at all."""
        told = {"features": FEATURES, "weights": self.weights, "bias": self.bias}
        write_file(file, json.dumps({**told, "about": dict(self.about)}, indent=1) + "\n")

    @classmethod
    def load(cls, file: Path) -> "StepWeights":
        """Read a router.

        Raises:
            ValueError: for a file that is none.
        """
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            weights = tuple(map(float, found["weights"]))
            if tuple(found["features"]) != FEATURES or len(weights) != len(FEATURES):
                raise ValueError("other features")
            bias = float(found["bias"])
            if not all(map(math.isfinite, (*weights, bias))):
                raise ValueError("weights with NaN or infinity")
            return cls(weights, bias, found.get("about", {}))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} is no router of this version ({error}); make one with 'draftwood train"
                " router'"
            ) from None


@dataclass(frozen=True)
class StepRouter(CollaborationRule):
    """Maheswaran et al. 2025, arXiv:2512.05033, Arbitrage.

    The paper's router is a fine-tuned process-reward model that reads the text. Ours is a logistic
    regression on what the follower's pass tells anyway. The released script writes every step with
    both models; here the leader runs only where the router wants it.

    Args:
        tau: probability above which the leader writes the step again.
        router: trained weights; None takes some that were set by hand: unsure steps are rewritten.
    """

    name: ClassVar[str] = "step-router"
    summary: ClassVar[str] = "the leader rewrites steps that a router expects it to do better"
    source: ClassVar[str] = "Maheswaran et al. 2025, arXiv:2512.05033"
    tau: float = knob(0.5, "probability above which the leader rewrites", 0, 1)
    router: StepWeights = StepWeights()

    def course(self, chance: random.Random) -> Course:
        return StepsWritten().course(self._rewrites)

    def _rewrites(self, step: StepSeen) -> bool:
        return self.router.probability(features(step)) > self.tau


def with_router(rule: CollaborationRule, file: Path) -> StepRouter:
    """The rule with trained weights.

    Raises:
        ValueError: for another rule, which reads none, and for a file that is no router.
    """
    if not isinstance(rule, StepRouter):
        raise ValueError(f"--router is for step-router, and rule {rule.name!r} reads none")
    return replace(rule, router=StepWeights.load(file))
