"""Searches and sums over rows of a vocabulary.

Each function runs in C++ where it can, many times faster than array operations: on float32 rows,
where the library compiled. Otherwise it runs in NumPy; see ``rows_numpy``.
"""

from collections.abc import Sequence
from ctypes import c_float

import numpy as np

from draftwood.arrays import Float, Int, address_of
from draftwood.native import library
from draftwood.native.threads import threads


def _in_numpy():
    from draftwood.native import rows_numpy  # where the library is there, nearly nobody needs it

    return rows_numpy


def in_cpp(rows: np.ndarray) -> bool:
    """True if the functions below run in C++ for these rows."""
    return (
        rows.dtype == np.float32 and rows.strides[-1] == 4 and rows.size > 0 and library.available()
    )


def topk(rows: Float[np.ndarray, "rows vocab"], count: int) -> Int[np.ndarray, "rows {count}"]:
    """The places of the ``count`` largest of each row, largest first.

    Of equal ones the first wins, as in ``argmax``. In 32 and 64 bits NaN comes before all numbers,
    so that it is found in the first place.
    """
    return _topk(rows, count, 1.0, None) if in_cpp(rows) else _in_numpy().topk(rows, count)


def topk_probs(
    logits: Float[np.ndarray, "rows vocab"], count: int, temperature: float
) -> tuple[Int[np.ndarray, "rows {count}"], Float[np.ndarray, "rows {count}"]]:
    """The ``count`` most likely tokens of each row, and their probabilities at a temperature.

    The tokens are those of ``topk``. The probabilities are those of a softmax over the whole row.
    """
    if not in_cpp(logits):
        return _in_numpy().topk_probs(logits, count, temperature)
    probs = np.empty((len(logits), count), np.float32)
    return _topk(logits, count, temperature, probs), probs


def _topk(rows: np.ndarray, count: int, temperature: float, probs: np.ndarray | None) -> np.ndarray:
    if not 0 <= count <= rows.shape[1]:
        raise ValueError(f"a row of {rows.shape[1]} entries has no {count} largest ones")
    places = np.empty((len(rows), count), np.int64)
    if not count:
        return places
    address = None if probs is None else address_of(probs)
    sizes = (len(rows), _stride(rows), rows.shape[1], count)
    library.library().draftwood_topk(
        address_of(rows), *sizes, address_of(places), temperature, address, threads()
    )
    return places


def _stride(rows: np.ndarray) -> int:
    """Entries from one float32 row to the next."""
    return rows.strides[0] // 4


def softmax(
    logits: Float[np.ndarray, "rows vocab"],
    temperature: float,
    out: Float[np.ndarray, "rows vocab"] | None = None,
) -> Float[np.ndarray, "rows vocab"]:
    """The probabilities of these logits: softmax(logits / temperature).

    A row becomes NaN where it holds NaN or plus infinity, or no finite logit.

    Args:
        logits: one row per position.
        temperature: above 0.
        out: contiguous float32 memory. C++ puts the result there; NumPy makes memory of its own.
    """
    if not in_cpp(logits):
        return _in_numpy().softmax(logits, temperature)
    probs = np.empty(logits.shape, np.float32) if out is None else out
    library.library().draftwood_softmax(
        address_of(logits),
        len(logits),
        _stride(logits),
        logits.shape[1],
        temperature,
        address_of(probs),
        threads(),
    )
    return probs


def sample_inverse_cdf(
    weights: Float[np.ndarray, "rows vocab"],
    uniforms: Float[np.ndarray, "rows count"],
    distinct: bool,
) -> Int[np.ndarray, "rows count"]:
    """Tokens drawn by inverting the cumulative distribution, one after the other.

    Each is the first place where the weights of its row, summed up to there, exceed a uniform's
    share of the total.

    Args:
        weights: need not be normalised.
        uniforms: numbers in [0, 1), in 64 bits.
        distinct: take a token out of its row once it is drawn.
    """
    if not in_cpp(weights):
        return _in_numpy().sample_inverse_cdf(weights, uniforms, distinct)
    places = np.empty(uniforms.shape, np.int64)
    sizes = (len(weights), _stride(weights), weights.shape[1])
    library.library().draftwood_sample_inverse_cdf(
        address_of(weights),
        *sizes,
        address_of(uniforms),
        uniforms.shape[1],
        distinct,
        address_of(places),
        threads(),
    )
    return places


def overlap(
    p: Float[np.ndarray, " vocab"], q: Float[np.ndarray, " vocab"], divisor: float
) -> float:
    """The sum of min(p / divisor, q)."""
    if not (in_cpp(p) and in_cpp(q)):
        return _in_numpy().overlap(p, q, divisor)
    return library.library().draftwood_overlap(address_of(p), address_of(q), len(p), 1.0 / divisor)


def gumbel_argmax(weights: Float[np.ndarray, " vocab"], key: tuple[int, int]) -> int:
    """The token whose ``exponential_noise`` over its weight is smallest: a draw by these weights.

    It is -1 where no weight is above 0. Key: two 32-bit words.
    """
    if not in_cpp(weights):
        return _in_numpy().gumbel_argmax(weights, key)
    return library.library().draftwood_gumbel_argmax(address_of(weights), len(weights), *key)


def gumbel_argmax_of_logits(
    logits: Float[np.ndarray, "rows vocab"], row: int, temperature: float, key: tuple[int, int]
) -> int:
    """The same for the weights exp(logit / temperature) of one row.

    At temperature 0 it is the place of the largest logit. It is -1 where the largest logit is NaN
    or infinite.
    """
    if not in_cpp(logits):
        return _gumbel_argmax_of_probs(logits[row : row + 1], temperature, key)
    address = address_of(logits) + row * logits.strides[0]
    return library.library().draftwood_gumbel_argmax_of_logits(
        address, logits.shape[1], temperature, *key
    )


def _gumbel_argmax_of_probs(
    logits: Float[np.ndarray, "1 vocab"], temperature: float, key: tuple[int, int]
) -> int:
    """The same by way of the probabilities, in 32 bits, or in 64 for 64-bit logits."""
    scores = logits if logits.dtype == np.float64 else logits.astype(np.float32)
    if temperature == 0.0:
        token = int(topk(scores, 1)[0, 0])
        return token if np.isfinite(scores[0, token]) else -1
    probs = softmax(scores, temperature)[0]
    return gumbel_argmax(probs, key) if probs[0] >= 0.0 else -1


def exponential_noise(tokens: Sequence[int], key: tuple[int, int]) -> list[float]:
    """Standard exponential numbers that belong to these tokens and a key of two 32-bit words."""
    if not in_cpp(_ONE):
        return _in_numpy().exponential_noise(np.array(tokens), key).tolist()
    times = (c_float * len(tokens))()
    library.library().draftwood_exponential_noise(
        library.integers(tokens), len(tokens), *key, times
    )
    return list(times)


_ONE = np.ones(1, np.float32)
