"""FoReaL-Decoding: the leader opens sentences, the follower ends them."""

import random
from dataclasses import dataclass
from typing import ClassVar

from draftwood.methods.knobs import knob
from draftwood_choices.collaboration.ends import sentence_end, until
from draftwood_choices.collaboration.passages import FOLLOWER, LEADER, Passage, TurnRequest
from draftwood_choices.collaboration.rule import CollaborationRule, Course


@dataclass(frozen=True)
class Foreal(CollaborationRule):
    """Li et al. 2025, arXiv:2506.06998.

    Args:
        n: tokens of a sentence that the leader writes, fewer where it ends before; 0 leaves all to
            the follower.
        p: probability that it opens one.
    """

    name: ClassVar[str] = "foreal"
    summary: ClassVar[str] = "the leader opens each sentence with n tokens, the follower ends it"
    source: ClassVar[str] = "Li et al. 2025, arXiv:2506.06998"
    n: int = knob(15, "tokens of a sentence that the leader writes", 0)
    p: float = knob(1.0, "probability that it opens one", 0, 1)

    def course(self, chance: random.Random) -> Course:
        begun = 0  # place of the sentence in the answer
        while True:
            ends = until(sentence_end, begun)
            passage = None
            if self.n and chance.random() < self.p:
                passage = yield TurnRequest(LEADER, self.n, ends)
                assert isinstance(passage, Passage)
            if passage is None or sentence_end(passage.behind, begun) is None:
                passage = yield TurnRequest(FOLLOWER, until=ends)
                assert isinstance(passage, Passage)
            begun = len(passage.behind)
