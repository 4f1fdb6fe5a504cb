"""First tokens: the leader begins the text, the follower writes the rest."""

import random
from dataclasses import dataclass
from typing import ClassVar

from draftwood.methods.knobs import knob
from draftwood_choices.collaboration.passages import FOLLOWER, LEADER, TurnRequest
from draftwood_choices.collaboration.rule import CollaborationRule, Course


@dataclass(frozen=True)
class FirstTokens(CollaborationRule):
    """A control: all of the leader's share at the beginning.

    Args:
        n: tokens that the leader writes.
    """

    name: ClassVar[str] = "first-n"
    summary: ClassVar[str] = "control: the leader writes the first n tokens"
    source: ClassVar[str] = "control of all of these"
    n: int = knob(64, "tokens that the leader writes", 0)

    def course(self, chance: random.Random) -> Course:
        if self.n:
            yield TurnRequest(LEADER, self.n)
        yield TurnRequest(FOLLOWER)
