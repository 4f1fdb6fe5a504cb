"""Entropy adaptive decoding: the leader writes where the writer at work is unsure."""

import random
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from draftwood.methods.knobs import knob
from draftwood_choices.collaboration.passages import FOLLOWER, LEADER, Passage, TurnRequest
from draftwood_choices.collaboration.rule import CollaborationRule, Course


@dataclass(frozen=True)
class EntropySwitch(CollaborationRule):
    """Simonds 2025, arXiv:2502.06833.

    The paper leaves open whose distributions count. We take those of the writer at work, before
    temperature: the other's would cost a pass for every token. The least length of a turn is our
    choice too. A text begins with no entropies, whose mean is 0.

    Args:
        tau: bits; above it the leader writes.
        window: newest distributions that count.
        least: tokens of a turn.
    """

    name: ClassVar[str] = "entropy-switch"
    meets_at_tokens: ClassVar[bool] = True
    summary: ClassVar[str] = "the leader writes while the writer at work is unsure of its tokens"
    source: ClassVar[str] = "Simonds 2025, arXiv:2502.06833"
    tau: float = knob(1.0, "bits of mean entropy above which the leader writes")
    window: int = knob(5, "newest distributions that count", 1)
    least: int = knob(10, "tokens of a turn at least", 1)

    def course(self, chance: random.Random) -> Course:
        newest = deque[float](maxlen=self.window)
        writer = self._writer(newest)

        def switch(passage: Passage) -> int | None:
            entropy = passage.tokens[-1].entropy
            assert entropy is not None  # it was asked for
            newest.append(entropy)
            count = len(passage.tokens)
            return count if count >= self.least and self._writer(newest) != writer else None

        while True:
            yield TurnRequest(writer, until=switch, reads=True)
            writer = FOLLOWER if writer == LEADER else LEADER

    def _writer(self, newest: deque[float]) -> str:
        return LEADER if sum(newest) / max(1, len(newest)) > self.tau else FOLLOWER
