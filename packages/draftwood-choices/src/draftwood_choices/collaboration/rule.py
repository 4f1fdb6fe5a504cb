"""Rules of collaboration: who writes next."""

import random
from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

from draftwood.methods.knobs import PartWithKnobs
from draftwood_choices.collaboration.passages import JudgeRequest, Passage, TurnRequest

Course = Generator[TurnRequest | JudgeRequest | Passage, Passage | float, None]
"""A rule at work on one text: it yields what it asks for, and is sent what came of it.

A passage that it yields takes the newest one's place; it is sent back.
"""


@dataclass(frozen=True)
class CollaborationRule(PartWithKnobs):
    """Says who writes next; ``--rule`` gives its name and knobs.

    Attributes:
        meets_at_tokens: True where writers change inside a word, so that they need one vocabulary.
        reads_leader: True if it reads what the leader thinks of a text.
    """

    meets_at_tokens: ClassVar[bool] = False
    reads_leader: ClassVar[bool] = False

    @abstractmethod
    def course(self, chance: random.Random) -> Course:
        """Begin a text.

        Args:
            chance: of the text's seed.
        """
