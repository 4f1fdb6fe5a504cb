"""Noise of pictures that are drawn side by side."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int


class Chance:
    """A generator for each picture, so that its noise depends on its own seed alone.

    Args:
        generators: of the pictures, in their order.
    """

    def __init__(self, generators: Sequence[np.random.Generator]) -> None:
        self._generators = generators

    @classmethod
    def of_seeds(cls, seeds: Iterable[int]) -> "Chance":
        """Make generators of whole numbers."""
        return cls([np.random.default_rng(seed % (1 << 64)) for seed in seeds])

    def of(self, pictures: Int[np.ndarray, " some"]) -> "Chance":
        """Give the generators of some pictures, which go on for all."""
        return Chance([self._generators[picture] for picture in pictures.tolist()])

    def normal(self, *shape: int) -> Float[np.ndarray, "pictures ..."]:
        """Independent standard normal numbers, an array of this shape for each picture."""
        return np.stack([each.standard_normal(shape) for each in self._generators])

    def uniform(self, *shape: int) -> Float[np.ndarray, "pictures ..."]:
        """Independent numbers between 0 and 1, likewise."""
        return np.stack([each.random(shape) for each in self._generators])
