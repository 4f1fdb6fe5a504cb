"""Searches through rows of a vocabulary, many times faster than by tensor operations where the rows
are on the CPU.
"""

from collections.abc import Sequence
from ctypes import c_float

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.native import library
from draftwood.native.threads import threads


def searchable(rows: Tensor) -> bool:
    """Whether the functions below take these rows."""
    return (
        rows.dtype == torch.float32
        and rows.device.type == "cpu"
        and rows.stride(-1) == 1
        and rows.numel() > 0
        and library.available()
    )


def topk(rows: Float[Tensor, "rows vocab"], count: int) -> Int[Tensor, "rows {count}"]:
    """The places of the ``count`` largest of each row, largest first; of equal ones the first; NaN
    before all.
    """
    return _topk(rows, count, 1.0, None)


def topk_probs(
    rows: Float[Tensor, "rows vocab"], count: int, temperature: float
) -> tuple[Int[Tensor, "rows {count}"], Float[Tensor, "rows {count}"]]:
    """The same, and their probabilities: shares in the sum of exp(value / temperature) over the
    whole row.
    """
    shares = torch.empty(len(rows), count, dtype=torch.float32)
    return _topk(rows, count, temperature, shares), shares


def _topk(rows: Tensor, count: int, temperature: float, shares: Tensor | None) -> Tensor:
    places = torch.empty(len(rows), count, dtype=torch.int64)
    address = None if shares is None else shares.data_ptr()
    sizes = (len(rows), rows.stride(0), rows.shape[1], count)
    library.library().draftwood_topk(
        rows.data_ptr(), *sizes, places.data_ptr(), temperature, address, threads()
    )
    return places


def softmax(
    rows: Float[Tensor, "rows vocab"],
    temperature: float,
    out: Float[Tensor, "rows vocab"] | None = None,
) -> Float[Tensor, "rows vocab"]:
    """The probabilities of these logits: softmax(rows / temperature), in ``out`` where that is
    given.

    As with ``softmax`` a row of NaN comes of one with NaN or plus infinity, or without any finite
    logit.
    """
    probs = torch.empty(rows.shape, dtype=torch.float32) if out is None else out
    library.library().draftwood_softmax(
        rows.data_ptr(),
        len(rows),
        rows.stride(0),
        rows.shape[1],
        temperature,
        probs.data_ptr(),
        threads(),
    )
    return probs


def sample_inverse_cdf(
    rows: Float[Tensor, "rows vocab"], shares: Float[Tensor, "rows count"], distinct: bool
) -> Int[Tensor, "rows count"]:
    """Where the weights of a row up to a place first exceed these shares (0 to 1) of their sum, one
    after the other.

    Args:
        rows: weights.
        shares: uniform numbers in 64 bits make draws by these weights.
        distinct: take a place out of its row once it is found.
    """
    places = torch.empty(shares.shape, dtype=torch.int64)
    sizes = (len(rows), rows.stride(0), rows.shape[1])
    library.library().draftwood_sample_inverse_cdf(
        rows.data_ptr(),
        *sizes,
        shares.data_ptr(),
        shares.shape[1],
        distinct,
        places.data_ptr(),
        threads(),
    )
    return places


def overlap(p: Float[Tensor, " vocab"], q: Float[Tensor, " vocab"], scale: float) -> float:
    """The sum of min(scale p, q)."""
    return library.library().draftwood_overlap(p.data_ptr(), q.data_ptr(), len(p), scale)


def gumbel_argmax(weights: Float[Tensor, " vocab"], key: tuple[int, int]) -> int:
    """The place whose number of ``exponential_noise`` over its weight is smallest; -1 where no
    weight is above 0.
    """
    return library.library().draftwood_gumbel_argmax(weights.data_ptr(), len(weights), *key)


def gumbel_argmax_of_logits(
    rows: Float[Tensor, "rows vocab"], row: int, temperature: float, key: tuple[int, int]
) -> int:
    """The same for the weights exp(logit / temperature) of one row; the place of the largest at
    temperature 0.

    It is -1 where the largest logit is NaN or infinite.
    """
    address = rows.data_ptr() + row * rows.stride(0) * rows.element_size()
    return library.library().draftwood_gumbel_argmax_of_logits(
        address, rows.shape[1], temperature, *key
    )


def exponential_noise(places: Sequence[int], key: tuple[int, int]) -> list[float]:
    """Standard exponential numbers that belong to these places and a key of two 32-bit words."""
    times = (c_float * len(places))()
    library.library().draftwood_exponential_noise(
        library.integers(places), len(places), *key, times
    )
    return list(times)
