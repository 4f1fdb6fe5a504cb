"""A block as a pass found it, which is all that rules know."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclass(frozen=True, eq=False)
class View:
    """A block of tokens and masks, and the model's distribution at each of its places.

    Distributions are those before temperature, and nothing here tells which tokens will be drawn
    from them: a rule that reads a view alone cannot prefer lucky draws, so one place a pass keeps
    the model's distribution. (Published code ranks drawn tokens by their own probability, which is
    the same at temperature 0.)

    Attributes:
        tokens: [places], with the mask token where nothing is written.
        is_open: [places], True where nothing is written.
        probs: [places vocab].
        order: [places], a number of each place from the text's seed, in [0, 1).
        history: views of this block's passes before, oldest first, as many as the rule asks for.
        reference: [places] of the text that will be written; None where nobody knows it.
    """

    tokens: Int[np.ndarray, " places"]
    is_open: Bool[np.ndarray, " places"]
    probs: Float[np.ndarray, "places vocab"]
    order: Float[np.ndarray, " places"]
    history: tuple["View", ...] = ()
    reference: Int[np.ndarray, " places"] | None = None

    def first(self, places: int) -> "View":
        """The same block cut off behind so many places."""
        reference = None if self.reference is None else self.reference[:places]
        return View(
            *(self.tokens[:places], self.is_open[:places], self.probs[:places]),
            *(self.order[:places], self.history, reference),
        )

    @cached_property
    def open(self) -> Int[np.ndarray, " open"]:
        """Places where nothing is written, at least one."""
        return np.flatnonzero(self.is_open)

    @cached_property
    def predictions(self) -> Int[np.ndarray, " places"]:
        """The likeliest token of each place."""
        return self.probs.argmax(-1)

    @cached_property
    def confidence(self) -> Float[np.ndarray, " places"]:
        """Its probability."""
        return self.probs.max(-1)

    @cached_property
    def margin(self) -> Float[np.ndarray, " places"]:
        """The same less the probability of the second likeliest token."""
        if self.probs.shape[-1] < 2:
            return self.confidence
        second, first = np.partition(self.probs, -2, axis=-1)[:, -2:].T
        return first - second

    @cached_property
    def entropy(self) -> Float[np.ndarray, " places"]:
        """Entropy of each distribution, in nats."""
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = self.probs * np.log(self.probs)
        return -np.nan_to_num(parts).sum(-1)

    def best(self, scores: Float[np.ndarray, " places"]) -> int:
        """The open place of the highest score; of equal ones the first."""
        return int(self.open[scores[self.open].argmax()])

    def above(
        self, scores: Float[np.ndarray, " places"], least: float
    ) -> Int[np.ndarray, " chosen"]:
        """Open places whose score is at least so high, and the best one in any case."""
        return self.with_best(self.is_open & (scores >= least), scores)

    def with_best(
        self, chosen: Bool[np.ndarray, " places"], scores: Float[np.ndarray, " places"]
    ) -> Int[np.ndarray, " chosen"]:
        """Chosen places, and the open one of the highest score."""
        chosen = chosen.copy()
        chosen[self.best(scores)] = True
        return np.flatnonzero(chosen)
