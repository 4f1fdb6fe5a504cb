"""The one source of randomness of a request.

Everything random in a decoding step is one of four acts: accept with a probability, draw a token, draw some tokens
without replacement, draw some tokens independently. They are methods here, so that ``draftwood.testing.outcomes`` can
put an enumerator in the place of chance and compute output laws exactly, running the very same code.

Draws need one 64-bit uniform each, never one per vocabulary entry: they invert the cumulative distribution. Drawing
without replacement one token after the other has the law of Gumbel-Top-k (Vieira 2014; Kool et al. 2019,
arXiv:1903.06059) and costs less on a CPU, where vocabulary-wide noise is dearer than the draft model's own softmax.
"""

import math
import random

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Rng:
    """Random acts of one request, reproducible from its seed.

    Args:
        seed: the same seed gives the same text, whatever else is in the batch; None takes one from the system.
        noise: with False, drafts are made of the likeliest tokens in falling order instead of drawn ones. Used at
            temperature 0, where the target's law puts all mass on one token and every draw is exact.
    """

    def __init__(self, seed: int | None = None, *, noise: bool = True) -> None:
        self.noise = noise
        self._uniforms = random.Random(seed)

    def uniform(self) -> float:
        """A number in [0, 1) with 53 random bits."""
        return self._uniforms.random()

    def exponential(self, rows: int, columns: int) -> Float[Tensor, "rows columns"]:
        """Independent standard exponential numbers, 64-bit, on the CPU."""
        return torch.tensor(
            [[-math.log1p(-self.uniform()) for _ in range(columns)] for _ in range(rows)], dtype=torch.float64
        )

    def accept(self, probability: float) -> bool:
        """True with this probability; values above 1 count as 1."""
        return self.uniform() < probability

    def draw(self, probs: Float[Tensor, " vocab"]) -> int:
        """One token; ``probs`` need not be normalised, a token of probability 0 is never drawn."""
        cumulative = probs.cumsum(-1, dtype=torch.float64)
        return int(_invert(cumulative[None], torch.tensor([[self.uniform()]], dtype=torch.float64)))

    def draw_distinct(self, probs: Float[Tensor, "rows vocab"], count: int) -> Int[Tensor, "rows {count}"]:
        """For each row ``count`` tokens without replacement, in drawing order.

        Where a row has fewer tokens of positive probability, the places left over hold tokens of probability 0:
        verifiers never accept those.
        """
        if not self.noise:
            return probs.topk(count, dim=-1).indices
        left, drawn = probs, []
        for _ in range(count):
            tokens = _invert(left.cumsum(-1, dtype=torch.float64), self._column(probs))
            drawn.append(tokens)
            left = left.scatter(-1, tokens, 0.0)
        return torch.cat(drawn, dim=-1)

    def draw_independent(self, probs: Float[Tensor, "rows vocab"], count: int) -> Int[Tensor, "rows {count}"]:
        """For each row ``count`` tokens, each drawn from the whole row."""
        if not self.noise:
            return probs.argmax(-1, keepdim=True).expand(-1, count)
        cumulative = probs.cumsum(-1, dtype=torch.float64)
        return torch.cat([_invert(cumulative, self._column(probs)) for _ in range(count)], dim=-1)

    def _column(self, probs: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows 1"]:
        uniforms = torch.tensor([[self.uniform()] for _ in range(len(probs))], dtype=torch.float64)
        return uniforms.to(probs.device, non_blocking=True)


def _invert(cumulative: Float[Tensor, "rows vocab"], uniforms: Float[Tensor, "rows 1"]) -> Int[Tensor, "rows 1"]:
    """First token whose cumulative weight exceeds the uniform's share of the total."""
    last = cumulative.shape[-1] - 1
    return torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True).clamp(max=last)
