"""The oracle: both writers write each step, and the one that the leader holds likelier stays."""

import random
from dataclasses import dataclass
from typing import ClassVar

from draftwood.methods.knobs import knob
from draftwood_choices.collaboration.passages import LEADER
from draftwood_choices.collaboration.rule import CollaborationRule, Course
from draftwood_choices.collaboration.rules.steps import StepSeen, StepsWritten, judged


@dataclass(frozen=True)
class Oracle(CollaborationRule):
    """A control: what a perfect router would do, which no text can do without writing all twice.

    Arbitrage, arXiv:2512.05033, scores steps by a process-reward model, and we by the leader's mean
    log-probability.

    Args:
        tau: nats by which the leader's step must be better.
    """

    name: ClassVar[str] = "oracle"
    reads_leader: ClassVar[bool] = True
    summary: ClassVar[str] = "control: both write each step, the leader's likelier one stays"
    source: ClassVar[str] = "control of arXiv:2512.05033"
    tau: float = knob(0.0, "nats by which the leader's step must be better")

    def course(self, chance: random.Random) -> Course:
        steps = StepsWritten()
        while True:
            drafted = yield from steps.draft()
            before = yield from judged(LEADER)
            step = yield from steps.rewrite(drafted)
            after = yield from judged(LEADER)
            self.note(StepSeen(drafted, tuple(steps.writers)), after - before)
            if after - before <= self.tau and step is not drafted:
                yield from steps.restore(drafted)
                step = drafted
            steps.writers.append(step.writer)

    def note(self, step: StepSeen, advantage: float) -> None:
        """See what the leader's step is better by, in nats; who trains a router remembers it."""
