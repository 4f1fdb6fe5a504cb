"""A finite list of weighted texts, whose conditional distributions are known exactly."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclass(frozen=True, eq=False)
class ListedTexts:
    """Texts of one length and their probabilities.

    Attributes:
        texts: [texts places].
        weights: [texts], above 0; they need not sum to 1.
        vocab: tokens there are; the mask is the last one, ``vocab - 1``.

    Raises:
        ValueError: for no texts, texts that hold the mask, and weights that do not fit.
    """

    texts: Int[np.ndarray, "texts places"]
    weights: Float[np.ndarray, " texts"]
    vocab: int

    def __post_init__(self) -> None:
        if self.texts.ndim != 2 or not self.texts.size or len(self.weights) != len(self.texts):
            raise ValueError(
                f"a list needs texts [texts places] with a weight each, got {self.texts.shape} and"
                f" {self.weights.shape}"
            )
        if not (self.weights > 0).all():
            raise ValueError(f"weights must be above 0, got {self.weights.min()}")
        if self.texts.min() < 0 or self.texts.max() >= self.mask:
            raise ValueError(
                f"tokens must be from 0 to {self.mask - 1}, as {self.mask} is the mask; got"
                f" {self.texts.min()} to {self.texts.max()}"
            )

    @classmethod
    def of(
        cls,
        texts: Sequence[Sequence[int]],
        weights: Sequence[float] | None = None,
        vocab: int | None = None,
    ) -> "ListedTexts":
        """List texts, equally likely unless weights say otherwise."""
        found = np.array(texts, np.int64)
        equal = np.ones(len(found)) if weights is None else np.array(weights, np.float64)
        return cls(found, equal, int(found.max()) + 2 if vocab is None else vocab)

    @property
    def mask(self) -> int:
        return self.vocab - 1

    @property
    def places(self) -> int:
        return self.texts.shape[1]

    @cached_property
    def chances(self) -> Float[np.ndarray, " texts"]:
        """Probability of each text."""
        return self.weights / self.weights.sum()

    def agreeing(self, known: Int[np.ndarray, " places"]) -> Bool[np.ndarray, " texts"]:
        """True for texts that hold all known tokens; places below 0 or with the mask are open."""
        (places,) = np.nonzero((known >= 0) & (known != self.mask))
        return (self.texts[:, places] == known[places]).all(1)

    def marginals(self, known: Int[np.ndarray, " places"]) -> Float[np.ndarray, "places vocab"]:
        """Distribution of every place, given known tokens.

        Where no text holds them all, a known place is judged by the others, and an open one may
        hold any token: a model knows nothing of texts that cannot be.
        """
        key = known.tobytes()
        if key not in self._known:
            self._known[key] = self._marginals(known)
        return self._known[key]

    @cached_property
    def _known(self) -> dict[bytes, Float[np.ndarray, "places vocab"]]:
        return {}

    def _marginals(self, known: Int[np.ndarray, " places"]) -> Float[np.ndarray, "places vocab"]:
        agreeing = self.agreeing(known)
        if agreeing.any():
            return self._of(agreeing)
        nothing = np.full((self.places, self.vocab), 1.0 / self.mask)
        nothing[:, self.mask] = 0.0
        for place in np.flatnonzero((known >= 0) & (known != self.mask)):
            others = known.copy()
            others[place] = self.mask
            if (agreeing := self.agreeing(others)).any():
                nothing[place] = self._of(agreeing)[place]
        return nothing

    def _of(self, chosen: Bool[np.ndarray, " texts"]) -> Float[np.ndarray, "places vocab"]:
        """Distributions among some texts."""
        texts, weights = self.texts[chosen], self.weights[chosen]
        cells = (texts + np.arange(self.places) * self.vocab).ravel()
        sums = np.bincount(cells, weights.repeat(self.places), self.places * self.vocab)
        return sums.reshape(self.places, self.vocab) / weights.sum()
