"""Functions of ``rows`` in NumPy: for 64 bits, and where nothing compiled.

Shapes and results are those of the functions of the same names in ``rows``.
"""

import numpy as np

from draftwood.arrays import Float, Int

_BLOCK = 256


def topk(rows: Float[np.ndarray, "rows vocab"], count: int) -> Int[np.ndarray, "rows {count}"]:
    """The places of the ``count`` largest of each row, of equal ones the first."""
    if count == 1:
        return rows.argmax(-1)[:, None]
    places = np.empty((len(rows), count), np.int64)
    for row, found in zip(rows, places, strict=True):
        found[:] = _first(row, count) if count else ()
    return places


def _first(row: Float[np.ndarray, " vocab"], count: int) -> Int[np.ndarray, " count"]:
    """Places of the largest, NaN before all numbers; only the winners are sorted."""
    odd = np.isnan(row)
    if odd.any():
        return np.lexsort((-row, ~odd))[:count]
    least = np.partition(row, len(row) - count)[len(row) - count]
    places = np.flatnonzero(row >= least)
    return places[np.argsort(-row[places], kind="stable")][:count]


def topk_probs(
    logits: Float[np.ndarray, "rows vocab"], count: int, temperature: float
) -> tuple[Int[np.ndarray, "rows {count}"], Float[np.ndarray, "rows {count}"]]:
    """The ``count`` most likely tokens of each row, and their probabilities at a temperature."""
    tokens = topk(logits, count)
    probs = softmax(logits.astype(np.float32, copy=False), temperature)
    return tokens, np.take_along_axis(probs, tokens, -1)


def softmax(
    logits: Float[np.ndarray, "rows vocab"], temperature: float
) -> Float[np.ndarray, "rows vocab"]:
    """The probabilities of these logits, in their own type."""
    with np.errstate(invalid="ignore", over="ignore"):
        scores = logits / logits.dtype.type(temperature)
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
    return scores


def sample_inverse_cdf(
    weights: Float[np.ndarray, "rows vocab"],
    uniforms: Float[np.ndarray, "rows count"],
    distinct: bool,
) -> Int[np.ndarray, "rows count"]:
    """Tokens at which the cumulative weight exceeds a uniform's share of the total.

    Weights are summed in blocks first, so that each draw sums up the blocks and then one of them
    instead of the whole vocabulary. Sums are in 64 bits, so that rare tokens keep their weight.
    """
    drawn = np.empty(uniforms.shape, np.int64)
    for row, shares, tokens in zip(weights, uniforms, drawn, strict=True):
        tokens[:] = _drawn(row, shares, distinct)
    return drawn


def _drawn(
    row: Float[np.ndarray, " vocab"], uniforms: Float[np.ndarray, " count"], distinct: bool
) -> list[int]:
    sums = np.add.reduceat(row, np.arange(0, len(row), _BLOCK), dtype=np.float64)
    left, drawn = row.astype(np.float64), list[int]()
    for uniform in uniforms:
        cumulative = sums.cumsum()
        share = uniform * cumulative[-1]
        block = min(int(cumulative.searchsorted(share, side="right")), len(sums) - 1)
        inside = left[block * _BLOCK : (block + 1) * _BLOCK]
        rest = max(share - (cumulative[block] - sums[block]), 0.0)
        place = int(inside.cumsum().searchsorted(rest, side="right"))
        positive = np.flatnonzero(inside > 0.0)
        last = positive[-1] if len(positive) else len(inside) - 1
        place = min(place, int(last))  # rounding may carry the share past the block's last token
        drawn.append(block * _BLOCK + place)
        if distinct:
            inside[place] = 0.0
            sums[block] = inside.sum()
    return drawn


def overlap(
    p: Float[np.ndarray, " vocab"], q: Float[np.ndarray, " vocab"], divisor: float
) -> float:
    """The sum of min(p / divisor, q)."""
    return float(np.minimum(p / divisor, q).sum())


def gumbel_argmax(weights: Float[np.ndarray, " vocab"], key: tuple[int, int]) -> int:
    """The token whose noise over its weight is smallest; -1 where no weight is above 0."""
    rates = weights.astype(np.float64)
    token = int((rates / exponential_noise(np.arange(len(rates)), key)).argmax())
    return token if rates[token] > 0.0 else -1


def exponential_noise(
    tokens: Int[np.ndarray, " tokens"], key: tuple[int, int]
) -> Float[np.ndarray, " tokens"]:
    """Exponential noise as ``native/noise.h`` computes it, in 64 bits."""
    first, second = key
    word = _scrambled((tokens.astype(np.uint64) + np.uint64(first)) & _WORD)
    high = _scrambled(word ^ np.uint64(second))
    low = _scrambled(word ^ np.uint64(second ^ 0xFFFFFFFF))
    uniform = high * 2.0**-32 + low * 2.0**-64 + 2.0**-66
    return -np.log1p(-np.minimum(uniform, 1.0 - 2.0**-24))


_WORD = np.uint64(0xFFFFFFFF)


def _scrambled(words: Int[np.ndarray, " words"]) -> Int[np.ndarray, " words"]:
    """32-bit words, each mixed so that near ones differ in every bit."""
    words = ((words ^ (words >> np.uint64(16))) * np.uint64(0x7FEB352D)) & _WORD
    words = ((words ^ (words >> np.uint64(15))) * np.uint64(0x846CA68B)) & _WORD
    return words ^ (words >> np.uint64(16))
