"""Layout of keys and values on the native path."""

import torch

from draftwood.native import library
from draftwood.native.formats import CacheType

SCALE_BYTES = 4


def stored_as(
    cache: CacheType | None, floats: torch.dtype, head_dim: int
) -> tuple[torch.dtype, tuple[int, ...]]:
    """The type of keys and values, and how many numbers those of a head and token take: in bytes
    the numbers themselves, and then their scale.
    """
    if cache is None:
        return floats, (head_dim,)
    return torch.uint8, (library.library().draftwood_padded_dim(head_dim), SCALE_BYTES)
