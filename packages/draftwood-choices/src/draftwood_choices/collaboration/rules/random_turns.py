"""Random turns: the leader writes some of all turns, wherever they are."""

import random
from dataclasses import dataclass
from typing import ClassVar

from draftwood.methods.knobs import knob
from draftwood_choices.collaboration.passages import FOLLOWER, LEADER, TurnRequest
from draftwood_choices.collaboration.rule import CollaborationRule, Course


@dataclass(frozen=True)
class RandomTurns(CollaborationRule):
    """A control: a rule that is no better than this one at its share of tokens finds nothing.

    Args:
        share: probability that a turn is the leader's.
        length: tokens of a turn.
    """

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "control: the leader writes a share of all turns, wherever they are"
    source: ClassVar[str] = "control of all of these"
    share: float = knob(0.5, "probability that a turn is the leader's", 0, 1)
    length: int = knob(10, "tokens of a turn", 1)

    def course(self, chance: random.Random) -> Course:
        while True:
            writer = LEADER if chance.random() < self.share else FOLLOWER
            yield TurnRequest(writer, self.length)
