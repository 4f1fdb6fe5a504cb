"""Names of the native path's types of weights, keys and values, and sizes of trained heads."""

from dataclasses import dataclass
from typing import Literal

Products = Literal["float32", "bfloat16", "int8", "int4"]
INTEGERS: tuple[Products, ...] = ("int8", "int4")
"""Products of rows that are rounded to 8 bits; what they are made from is stored in so many."""

CacheType = Literal["int8"]
"""Keys and values other than in floats."""
HalfType = Literal["float32", "bfloat16"]
"""Types of an embedding, and of keys and values in floats."""
CacheNumbers = Literal["float32", "bfloat16", "int8"]
"""Types in which keys and values lie in blocks."""
CACHES: tuple[CacheType, ...] = ("int8",)


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of a drafter's decoder layers; usually those of its target's.

    Attributes:
        hidden: entries of a hidden state, the target's.
        rope_theta: base of the rotary embedding.
        epsilon: of the norms.
    """

    hidden: int
    intermediate_size: int
    heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10000.0
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        if self.heads % self.num_kv_heads:
            raise ValueError(
                f"heads ({self.heads}) must be a multiple of num_kv_heads ({self.num_kv_heads})"
            )
