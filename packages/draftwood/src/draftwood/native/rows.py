"""Searches and sums over rows of a vocabulary.

Each function runs in C++ where it can, many times faster than tensor operations: on float32 rows
on the CPU, where the library compiled. Otherwise it runs in PyTorch; see ``rows_torch``.
"""

from collections.abc import Sequence
from ctypes import c_float

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.native import library, rows_torch
from draftwood.native.threads import threads


def in_cpp(rows: Tensor) -> bool:
    """True if the functions below run in C++ for these rows."""
    return (
        rows.dtype == torch.float32
        and rows.device.type == "cpu"
        and rows.stride(-1) == 1
        and rows.numel() > 0
        and library.available()
    )


def topk(rows: Float[Tensor, "rows vocab"], count: int) -> Int[Tensor, "rows {count}"]:
    """The places of the ``count`` largest of each row, largest first.

    Of equal ones the first wins, as in ``argmax``. In 32 and 64 bits NaN comes before all numbers,
    so that it is found in the first place.
    """
    return _topk(rows, count, 1.0, None) if in_cpp(rows) else rows_torch.topk(rows, count)


def topk_probs(
    logits: Float[Tensor, "rows vocab"], count: int, temperature: float
) -> tuple[Int[Tensor, "rows {count}"], Float[Tensor, "rows {count}"]]:
    """The ``count`` most likely tokens of each row, and their probabilities at a temperature.

    The tokens are those of ``topk``. The probabilities are those of a softmax over the whole row.
    """
    if not in_cpp(logits):
        return rows_torch.topk_probs(logits, count, temperature)
    probs = torch.empty(len(logits), count, dtype=torch.float32)
    return _topk(logits, count, temperature, probs), probs


def _topk(rows: Tensor, count: int, temperature: float, probs: Tensor | None) -> Tensor:
    places = torch.empty(len(rows), count, dtype=torch.int64)
    address = None if probs is None else probs.data_ptr()
    sizes = (len(rows), rows.stride(0), rows.shape[1], count)
    library.library().draftwood_topk(
        rows.data_ptr(), *sizes, places.data_ptr(), temperature, address, threads()
    )
    return places


def softmax(
    logits: Float[Tensor, "rows vocab"],
    temperature: float,
    out: Float[Tensor, "rows vocab"] | None = None,
) -> Float[Tensor, "rows vocab"]:
    """The probabilities of these logits: softmax(logits / temperature).

    A row becomes NaN where it holds NaN or plus infinity, or no finite logit.

    Args:
        logits: one row per position.
        temperature: above 0.
        out: contiguous float32 memory on the CPU. C++ puts the result there; PyTorch makes memory
            of its own.
    """
    if not in_cpp(logits):
        return rows_torch.softmax(logits, temperature)
    probs = torch.empty(logits.shape, dtype=torch.float32) if out is None else out
    library.library().draftwood_softmax(
        logits.data_ptr(),
        len(logits),
        logits.stride(0),
        logits.shape[1],
        temperature,
        probs.data_ptr(),
        threads(),
    )
    return probs


def sample_inverse_cdf(
    weights: Float[Tensor, "rows vocab"], uniforms: Float[Tensor, "rows count"], distinct: bool
) -> Int[Tensor, "rows count"]:
    """Tokens drawn by inverting the cumulative distribution, one after the other.

    Each is the first place where the weights of its row, summed up to there, exceed a uniform's
    share of the total.

    Args:
        weights: need not be normalised.
        uniforms: numbers in [0, 1), in 64 bits, on the CPU.
        distinct: take a token out of its row once it is drawn.
    """
    if not in_cpp(weights):
        return rows_torch.sample_inverse_cdf(weights, uniforms, distinct)
    places = torch.empty(uniforms.shape, dtype=torch.int64)
    sizes = (len(weights), weights.stride(0), weights.shape[1])
    library.library().draftwood_sample_inverse_cdf(
        weights.data_ptr(),
        *sizes,
        uniforms.data_ptr(),
        uniforms.shape[1],
        distinct,
        places.data_ptr(),
        threads(),
    )
    return places


def overlap(p: Float[Tensor, " vocab"], q: Float[Tensor, " vocab"], divisor: float) -> float:
    """The sum of min(p / divisor, q)."""
    if not (in_cpp(p) and in_cpp(q)):
        return rows_torch.overlap(p, q, divisor)
    return library.library().draftwood_overlap(p.data_ptr(), q.data_ptr(), len(p), 1.0 / divisor)


def gumbel_argmax(weights: Float[Tensor, " vocab"], key: tuple[int, int]) -> int:
    """The token whose ``exponential_noise`` over its weight is smallest: a draw by these weights.

    It is -1 where no weight is above 0. Key: two 32-bit words.
    """
    if not in_cpp(weights):
        return rows_torch.gumbel_argmax(weights, key)
    return library.library().draftwood_gumbel_argmax(weights.data_ptr(), len(weights), *key)


def gumbel_argmax_of_logits(
    logits: Float[Tensor, "rows vocab"], row: int, temperature: float, key: tuple[int, int]
) -> int:
    """The same for the weights exp(logit / temperature) of one row.

    At temperature 0 it is the place of the largest logit. It is -1 where the largest logit is NaN
    or infinite.
    """
    if not in_cpp(logits):
        return _gumbel_argmax_of_probs(logits[row : row + 1], temperature, key)
    address = logits.data_ptr() + row * logits.stride(0) * logits.element_size()
    return library.library().draftwood_gumbel_argmax_of_logits(
        address, logits.shape[1], temperature, *key
    )


def _gumbel_argmax_of_probs(
    logits: Float[Tensor, "1 vocab"], temperature: float, key: tuple[int, int]
) -> int:
    """The same by way of the probabilities, in 32 bits, or in 64 for 64-bit logits."""
    scores = logits if logits.dtype == torch.float64 else logits.float()
    if temperature == 0.0:
        token = topk(scores, 1)
        return int(token) if scores.gather(-1, token).isfinite() else -1
    probs = softmax(scores, temperature)[0]
    return gumbel_argmax(probs, key) if probs[0] >= 0.0 else -1


def exponential_noise(tokens: Sequence[int], key: tuple[int, int]) -> list[float]:
    """Standard exponential numbers that belong to these tokens and a key of two 32-bit words."""
    if not in_cpp(_ONE):
        return rows_torch.exponential_noise(torch.tensor(tokens), key).tolist()
    times = (c_float * len(tokens))()
    library.library().draftwood_exponential_noise(
        library.integers(tokens), len(tokens), *key, times
    )
    return list(times)


_ONE = torch.ones(1, dtype=torch.float32)
