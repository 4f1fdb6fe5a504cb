"""A fixed score: the leader writes a step again of which the follower was not sure enough."""

import random
from dataclasses import dataclass
from typing import ClassVar

from draftwood.methods.knobs import knob
from draftwood_choices.collaboration.rule import CollaborationRule, Course
from draftwood_choices.collaboration.rules.steps import StepsWritten


@dataclass(frozen=True)
class FixedScore(CollaborationRule):
    """A control: the rule that Arbitrage, arXiv:2512.05033, compares with, without its model.

    Args:
        least: mean log-probability of a step's tokens, in nats, below which the leader writes it.
    """

    name: ClassVar[str] = "fixed-score"
    summary: ClassVar[str] = "control: the leader rewrites steps that the follower is unsure of"
    source: ClassVar[str] = "control of arXiv:2512.05033"
    least: float = knob(-0.5, "mean log-probability of a step below which the leader writes it")

    def course(self, chance: random.Random) -> Course:
        return StepsWritten().course(lambda step: step.mean_logprob < self.least)
