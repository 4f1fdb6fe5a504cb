"""Sizes of a model: read where its configuration is found, used where passes are priced."""

from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True)
class ModelSize:
    """Weights that a pass reads and multiplies.

    Attributes:
        parameters: that each row is multiplied with: all matrices and the output head, without the
            rows of embeddings that are only looked up; of a mixture of experts, those in use.
        bits: of a weight, scales included.
        layers: of the decoder.
        cache_bytes: of keys and values for each token of context.
        attention: operations of attention for each row and each token of context.

    Raises:
        ValueError: for sizes that are not above 0, or without end.
    """

    parameters: float
    bits: float = 16.0
    layers: int = 32
    cache_bytes: float = 0.0
    attention: float = 0.0

    def __post_init__(self) -> None:
        sizes, more = (self.parameters, self.bits, self.layers), (self.cache_bytes, self.attention)
        if not (all(map(isfinite, sizes + more)) and min(sizes) > 0 and min(more) >= 0):
            raise ValueError(
                "a model needs parameters, bits and layers above 0, got"
                f" {self.parameters:g}, {self.bits:g} and {self.layers}"
            )

    @property
    def weight_bytes(self) -> float:
        return self.parameters * self.bits / 8
