"""Draws of a text: each place and token has a race number from the seed."""

from functools import partial

import numpy as np
from jaxtyping import Float, Int

from draftwood.native.rows import topk
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood_diffusion.block_state import Leaders, Seen

AS_THEY_ARE = Sampling(temperature=1.0)
IN_VIEW = 64
"""Likeliest tokens of a place, whose numbers are looked at for those that come close to winning."""


class Race:
    """Reads what passes say of places, and draws their tokens.

    A place's token is the one whose number over its probability is smallest (the Gumbel-max trick,
    see ``draftwood.rng``). The numbers are the seed's, whatever pass asks, so that equal rows draw
    equal tokens in every pass.

    Args:
        sampling: temperature and cuts.
        seed: of the text; None takes one from the system.
        mask: a token that is never drawn.
        places: of the text.

    Attributes:
        order: [places], a number of each place in [0, 1), which has nothing to do with draws.
    """

    def __init__(self, sampling: Sampling, seed: int | None, mask: int, places: int) -> None:
        self.sampling, self.mask, self._rng = sampling, mask, Rng(seed)
        self.order = np.array([self._rng.uniform() for _ in range(places)])

    def read(self, logits: Float[np.ndarray, "places vocab"], first: int) -> Seen:
        """Distributions and draws of places.

        Args:
            logits: of each place; numbers of the mask token do not count.
            first: number of the first place in the text; below 0 they are the prompt's.

        Raises:
            ValueError: for logits that are no numbers.
        """
        scores = logits.copy()
        scores[:, self.mask] = -np.inf
        (broken,) = np.nonzero(~np.isfinite(scores.max(-1)))
        if len(broken):
            raise ValueError(
                f"token {first + broken[0] + 1} of the text cannot be chosen: the model's logits"
                " hold no numbers; its weights are damaged"
            )
        probs, drawn = AS_THEY_ARE.probs(scores), self._drawn(scores, first)
        return Seen(probs, drawn, partial(self._leaders, scores, drawn, first))

    def _drawn(
        self, scores: Float[np.ndarray, "places vocab"], first: int
    ) -> Int[np.ndarray, " places"]:
        sampling = self.sampling
        if sampling.greedy:
            return topk(scores, 1)[:, 0]
        temperature = sampling.temperature
        if not sampling.only_temperature:
            with np.errstate(divide="ignore"):
                scores, temperature = np.log(sampling.probs(scores)), 1.0
        places = range(max(0, -first), len(scores))
        drawn = [self._rng.draw_ahead(scores, row, temperature, first + row) for row in places]
        return np.array([-1] * (len(scores) - len(drawn)) + drawn, np.int64)

    def _leaders(
        self,
        scores: Float[np.ndarray, "places vocab"],
        drawn: Int[np.ndarray, " places"],
        first: int,
        count: int,
    ) -> Leaders:
        """The tokens with the highest rates, a probability over its number, behind the drawn one.

        Greedily probabilities are the rates: what is likeliest by little may not stay so.
        """
        sampling = AS_THEY_ARE if self.sampling.greedy else self.sampling
        probs = sampling.probs(scores)
        likely = topk(probs, min(IN_VIEW, probs.shape[-1]))
        tokens, shares = np.full((len(drawn), count), -1), np.zeros((len(drawn), count))
        for place in range(max(0, -first), len(drawn)):
            seen = np.array([drawn[place], *likely[place][likely[place] != drawn[place]]])
            rates = probs[place, seen].astype(np.float64)
            if not self.sampling.greedy:
                rates /= self._rng.exponential_noise(seen.tolist(), first + place)
            leading = np.array([0, *(1 + np.argsort(-rates[1:], kind="stable"))])[:count]
            tokens[place, : len(leading)] = seen[leading]
            shares[place, : len(leading)] = rates[leading] / rates[leading].sum()
        return Leaders(tokens, shares)
