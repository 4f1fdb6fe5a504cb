"""Draws of a text: each place and token has a race number from the seed."""

import numpy as np
from jaxtyping import Float, Int

from draftwood.native.rows import topk
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood_diffusion.block_state import Seen

AS_THEY_ARE = Sampling(temperature=1.0)


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
        return Seen(AS_THEY_ARE.probs(scores), self._drawn(scores, first))

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
