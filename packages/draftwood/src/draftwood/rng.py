"""The one source of randomness of a request.

Everything random in a decoding step is one of four acts: accept with a probability, draw a token,
draw some tokens without replacement, draw some tokens independently. They are methods here, so that
``draftwood.testing.outcomes`` can put an enumerator in the place of chance and compute output
distributions exactly, running the very same code. A stochastic beam draws exponential numbers
beside them, and is tested by sampling.

A single draw is an exponential race with noise that belongs to its place in the text, so that a
text depends on the seed alone and not on what was drafted, and drafts can be made that fit the
noise (Daliri et al. 2024, arXiv:2408.07978). Drafts of whole trees need one 64-bit uniform each,
never one per vocabulary entry: they invert the cumulative distribution. Drawing without replacement
one token after the other has the distribution of Gumbel-Top-k (Vieira 2014; Kool et al. 2019,
arXiv:1903.06059) and costs less on a CPU.
"""

import math
import random
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from draftwood.arrays import Float, Int
from draftwood.native.rows import (
    exponential_noise,
    gumbel_argmax,
    gumbel_argmax_of_logits,
    sample_inverse_cdf,
    topk,
)

if TYPE_CHECKING:
    from draftwood.native.logit_rows import Children, LogitRows


class Rng:
    """Random acts of one request, reproducible from its seed.

    Args:
        seed: any whole number; the same one gives the same text, whatever else is in the batch.
            None takes one from the system.
        noise: with False, drafts are made of the likeliest tokens in falling order instead of drawn
            ones. Used at temperature 0, where the target's distribution puts all mass on one token
            and every draw is exact.
    """

    def __init__(self, seed: int | None = None, *, noise: bool = True) -> None:
        self.noise = noise
        # of a negative number Python's generator takes the absolute value, so its digits are given
        # instead
        self._uniforms = random.Random(
            None if seed is None else int(seed) if seed >= 0 else str(int(seed))
        )
        self._key = self._uniforms.getrandbits(64)
        self._place = 0  # draws so far
        self._coming = deque[float]()  # uniform numbers that were looked at before their turn

    @property
    def state(self) -> tuple[object, int, int]:
        """All that further acts depend on: equal states, equal acts."""
        return (self._uniforms.getstate(), tuple(self._coming)), self._key, self._place

    @state.setter
    def state(self, state: tuple[Any, int, int]) -> None:
        (uniforms, coming), self._key, self._place = state
        self._uniforms.setstate(uniforms)
        self._coming = deque(coming)

    def copy(self) -> "Rng":
        """Copy whose next acts are the same."""
        other = Rng(0, noise=self.noise)
        other.state = self.state
        return other

    def uniform(self) -> float:
        """A number in [0, 1) with 53 random bits."""
        return self._coming.popleft() if self._coming else self._uniforms.random()

    def coming(self, count: int) -> list[float]:
        """Look at the uniform numbers that come next, which stay to come."""
        while len(self._coming) < count:
            self._coming.append(self._uniforms.random())
        return list(islice(self._coming, count))

    def exponential(self, rows: int, columns: int) -> Float[np.ndarray, "rows columns"]:
        """Independent standard exponential numbers, 64-bit."""
        return _table([-math.log(1.0 - self.uniform()) for _ in range(rows * columns)], columns)

    def accept(self, probability: float) -> bool:
        """True with this probability; values above 1 count as 1."""
        return self.uniform() < probability

    def draw(self, probs: Float[np.ndarray, " vocab"]) -> int:
        """One token; ``probs`` need not be normalised, a token of probability 0 is never drawn.

        Every token has an exponential number, and the one whose number over its probability is
        smallest is drawn: the Gumbel-max trick. The numbers belong to the request's seed, the token
        and how many draws came before.

        Raises:
            ValueError: where no probability is above 0.
        """
        token = gumbel_argmax(probs, self._next_key())
        if token < 0:
            raise ValueError("there is nothing to draw: no token has a probability above 0")
        return token

    def draw_from_logits(
        self, logits: Float[np.ndarray, "rows vocab"], row: int, temperature: float
    ) -> int:
        """The token that ``draw`` takes from softmax(logits[row] / temperature).

        It is the same up to rounding. The C++ path does not compute the softmax.

        Args:
            logits: of the model, one row per position.
            row: which of them.
            temperature: 0 takes the likeliest token.

        Returns:
            The token; -1 where the largest logit is NaN or infinite.
        """
        return gumbel_argmax_of_logits(logits, row, temperature, self._next_key())

    def draw_ahead(
        self, logits: Float[np.ndarray, "rows vocab"], row: int, temperature: float, ahead: int
    ) -> int:
        """The token that ``draw_from_logits`` will take of such logits after ``ahead`` other draws.

        Like ``exponential_noise`` it is for drafters, and leaves the draws as they are.
        """
        return gumbel_argmax_of_logits(logits, row, temperature, self._place_key(ahead))

    def foresee(self, probs: Float[np.ndarray, " vocab"], ahead: int) -> int:
        """The token that ``draw`` will take of such probabilities after ``ahead`` other draws.

        Without noise it is the likeliest. Like ``draw_ahead`` it is for drafters.
        """
        if not self.noise:
            return int(probs.argmax())
        return max(0, gumbel_argmax(probs, self._place_key(ahead)))

    def _next_key(self) -> tuple[int, int]:
        key = self._place_key(0)
        self._place += 1
        return key

    def exponential_noise(self, tokens: Sequence[int], ahead: int = 0) -> list[float]:
        """The exponential numbers of these tokens in the draw that comes after ``ahead`` others.

        A drafter that looks at them drafts what it expects to be drawn. That is no cheating: the
        numbers decide which token is drawn, and whatever was drafted the target's draw is the same.
        """
        return exponential_noise(tokens, self._place_key(ahead))

    @property
    def next_draw(self) -> tuple[int, int]:
        """The request's key and the number of its next draw.

        From these ``native/noise.h`` makes the same numbers.
        """
        return self._key, self._place

    def skip(self, draws: int, uniforms: int = 0) -> None:
        """Count what was used elsewhere: draws of these numbers, and uniforms that were coming."""
        self._place += draws
        for _ in range(uniforms):
            self._coming.popleft()

    def _place_key(self, ahead: int) -> tuple[int, int]:
        """Two words for a draw: SplitMix64 (Steele et al. 2014)."""
        word = (self._key + (self._place + ahead + 1) * 0x9E3779B97F4A7C15) & _WORD
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
        word ^= word >> 31
        return word & 0xFFFFFFFF, word >> 32

    def draw_distinct(
        self, probs: Float[np.ndarray, "rows vocab"], count: int
    ) -> Int[np.ndarray, "rows {count}"]:
        """Draw ``count`` tokens of each row without replacement, in drawing order.

        If a row has fewer tokens of positive probability, the remaining places hold tokens that are
        drawn already or have probability 0: verifiers never accept those.
        """
        if not self.noise:
            return topk(probs, count)
        return self._invert(probs, count, distinct=True)

    def draw_independent(
        self, probs: Float[np.ndarray, "rows vocab"], count: int
    ) -> Int[np.ndarray, "rows {count}"]:
        """Draw ``count`` tokens of each row, each from the whole row.

        Without noise they are the likeliest, of which a row has to have so many: copies of one
        would bring nothing.
        """
        if not self.noise:
            return topk(probs, count)
        return self._invert(probs, count, distinct=False)

    def draw_children(
        self, rows: "Float[np.ndarray, 'rows vocab'] | LogitRows", count: int, distinct: bool = True
    ) -> "Children":
        """Draw ``count`` tokens after each node, from probabilities or from rows that stay logits.

        Their distribution is that of ``draw_distinct`` or ``draw_independent`` on the rows'
        probabilities.
        """
        if isinstance(rows, np.ndarray):
            draw = self.draw_distinct if distinct else self.draw_independent
            from draftwood.native.logit_rows import children_of

            return children_of(rows, draw(rows, count))
        if not self.noise:
            return rows.likeliest(count)
        uniforms = [self.uniform() for _ in range(len(rows) * count)]
        return rows.drawn(uniforms, count, distinct)

    def _invert(
        self, probs: Float[np.ndarray, "rows vocab"], count: int, distinct: bool
    ) -> Int[np.ndarray, "rows {count}"]:
        """Tokens at which the cumulative weight exceeds a uniform's share of the total."""
        uniforms = [self.uniform() for _ in range(len(probs) * count)]
        return sample_inverse_cdf(probs, _table(uniforms, count), distinct)


_WORD = (1 << 64) - 1


def _table(numbers: Sequence[float], columns: int) -> Float[np.ndarray, "rows columns"]:
    """These numbers in 64 bits, row by row."""
    return np.array(numbers).reshape(-1, columns)
