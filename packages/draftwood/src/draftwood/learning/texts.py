"""Rows of written texts that a head learns from."""

from dataclasses import dataclass

import numpy as np

from draftwood.arrays import Bool, Float, Int, UInt16, from_bfloat16


@dataclass(frozen=True, eq=False)
class WatchedText:
    """Part of a text as its head read it, with the target's answer at each place.

    Attributes:
        tokens: of the rows, which follow each other without a gap.
        states: the target's hidden states of the layers that the head reads, in its order, as the
            bits of bfloat16.
        final: the target's states behind its final norm, likewise; its output head makes them the
            distribution of the next token. Nothing is known of the rows before ``answer``.
        rejected: True at the last accepted row of a step where drafts followed it and all of them
            were rejected, and where a step had no drafts.
        answer: the first row of the answer.
        temperature: of the draws; 0 took the likeliest tokens.
    """

    tokens: Int[np.ndarray, " rows"]
    states: UInt16[np.ndarray, "rows reads dim"]
    final: UInt16[np.ndarray, "rows dim"]
    rejected: Bool[np.ndarray, " rows"]
    answer: int
    temperature: float

    @property
    def answer_rows(self) -> int:
        """Rows whose distribution is known."""
        return len(self.tokens) - self.answer

    @property
    def memory(self) -> int:
        """Bytes of all arrays."""
        return sum(each.nbytes for each in (self.tokens, self.states, self.final, self.rejected))

    def part(
        self, start: int, stop: int
    ) -> tuple[Float[np.ndarray, "rows reads dim"], Float[np.ndarray, "rows dim"]]:
        """Give both kinds of states of some rows in float32."""
        return from_bfloat16(self.states[start:stop]), from_bfloat16(self.final[start:stop])
