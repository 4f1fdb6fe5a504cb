"""Searches through rows of a vocabulary, many times faster than by tensor operations where the rows are on the CPU."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.native import library


def searchable(rows: Tensor) -> bool:
    """Whether the functions below take these rows."""
    return (
        rows.dtype == torch.float32
        and rows.device.type == "cpu"
        and rows.stride(-1) == 1
        and rows.numel() > 0
        and library.available()
    )


def largest(rows: Float[Tensor, "rows vocab"], count: int) -> Int[Tensor, "rows {count}"]:
    """The places of the ``count`` largest of each row, largest first; of equal ones the first."""
    places = torch.empty(len(rows), count, dtype=torch.int64)
    library.library().draftwood_largest(
        rows.data_ptr(), len(rows), rows.stride(0), rows.shape[1], count, places.data_ptr()
    )
    return places


def place_of_share(weights: Float[Tensor, " vocab"], share: float) -> int:
    """The place at which the weights up to it first exceed this share (0 to 1) of their sum: inverts a distribution."""
    return library.library().draftwood_place_of_share(weights.data_ptr(), len(weights), share)
