"""Log-probabilities of emitted tokens."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from draftwood.arrays import as_array
from draftwood.native.rows import topk
from draftwood.stats import TokenLogprob


def token_logprobs(
    tokens: Sequence[int], logits: Float[np.ndarray, "tokens vocab"], count: int
) -> tuple[TokenLogprob, ...]:
    """The target's own log-probabilities, before temperature and penalties.

    Args:
        tokens: emitted ones.
        logits: before each of them.
        count: likeliest tokens that are reported beside each.
    """
    logits = as_array(logits)
    best = topk(logits, min(count, logits.shape[-1]))
    return tuple(map(_logprob, tokens, logits, best))


def _logprob(
    token: int, logits: Float[np.ndarray, " vocab"], best: Int[np.ndarray, " best"]
) -> TokenLogprob:
    highest = logits.max()
    rest = float(highest) + float(np.log(np.exp(logits - highest).sum(dtype=np.float64)))
    values = (float(logits[each]) - rest for each in best)
    likeliest = dict(zip(best.tolist(), values, strict=True))
    return TokenLogprob(token, float(logits[token]) - rest, likeliest)
