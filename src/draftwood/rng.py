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

from draftwood.native.rows import place_of_share, searchable


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
        if searchable(probs):
            return place_of_share(probs, self.uniform())
        sums = _block_sums(probs[None])[0]
        cumulative = sums.cumsum(-1)
        share = self.uniform() * cumulative[-1]
        block = min(int(torch.searchsorted(cumulative, share, right=True)), len(sums) - 1)
        weights = probs[block * _BLOCK : (block + 1) * _BLOCK].double()
        rest = (share - cumulative[block] + sums[block]).clamp(min=0.0)
        place = int(torch.searchsorted(weights.cumsum(-1), rest, right=True))
        if place == len(weights):  # rounding carried the share past the block's last token
            place = int(weights.nonzero()[-1]) if bool(weights.any()) else len(weights) - 1
        return block * _BLOCK + place

    def draw_distinct(self, probs: Float[Tensor, "rows vocab"], count: int) -> Int[Tensor, "rows {count}"]:
        """For each row ``count`` tokens without replacement, in drawing order.

        Where a row has fewer tokens of positive probability, the places left over hold tokens that are drawn already
        or have probability 0: verifiers never accept those.
        """
        if not self.noise:
            return probs.topk(count, dim=-1).indices
        return self._invert(probs, count, distinct=True)

    def draw_independent(self, probs: Float[Tensor, "rows vocab"], count: int) -> Int[Tensor, "rows {count}"]:
        """For each row ``count`` tokens, each drawn from the whole row."""
        if not self.noise:
            return probs.argmax(-1, keepdim=True).expand(-1, count)
        return self._invert(probs, count, distinct=False)

    def _invert(self, probs: Float[Tensor, "rows vocab"], count: int, distinct: bool) -> Int[Tensor, "rows {count}"]:
        """Tokens at which the cumulative weight passes a uniform's share of the total.

        Weights are summed in blocks first, so that each draw sums up the blocks and then one of them instead of the
        whole vocabulary; in 64 bits, so that rare tokens keep their weight.
        """
        rows, vocab = probs.shape
        device = probs.device
        uniforms = torch.tensor([[self.uniform() for _ in range(count)] for _ in range(rows)], dtype=torch.float64)
        uniforms = uniforms.to(device, non_blocking=True)
        sums = _block_sums(probs)
        drawn = torch.full((rows, count), -1, device=device)
        within = torch.arange(_BLOCK, device=device)
        for draw in range(count):
            cumulative = sums.cumsum(-1)
            share = uniforms[:, draw : draw + 1] * cumulative[:, -1:]
            block = torch.searchsorted(cumulative, share, right=True).clamp(max=sums.shape[-1] - 1)
            numbers = block * _BLOCK + within
            weights = probs.gather(-1, numbers.clamp(max=vocab - 1)).double() * (numbers < vocab)
            if distinct and draw:
                weights = weights * (numbers[..., None] != drawn[:, None, :draw]).all(-1)
            rest = share - (cumulative - sums).gather(-1, block)
            place = torch.searchsorted(weights.cumsum(-1), rest.clamp(min=0.0), right=True)
            last = _BLOCK - 1 - (weights > 0).flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
            place = place.minimum(last)  # rounding may carry the share past the block's last token
            drawn[:, draw : draw + 1] = numbers.gather(-1, place).clamp(max=vocab - 1)
            if distinct:
                sums = sums.scatter(-1, block, weights.scatter(-1, place, 0.0).sum(-1, keepdim=True))
        return drawn


_BLOCK = 256


def _block_sums(probs: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows blocks"]:
    rows, vocab = probs.shape
    whole = vocab // _BLOCK * _BLOCK
    sums = probs[:, :whole].view(rows, -1, _BLOCK).sum(-1, dtype=torch.float64)
    if whole == vocab:
        return sums
    return torch.cat([sums, probs[:, whole:].sum(-1, keepdim=True, dtype=torch.float64)], dim=-1)
