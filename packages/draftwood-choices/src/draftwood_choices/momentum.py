"""Momentum decoding: greedy decoding that pays for going the same way again."""

import numpy as np
from jaxtyping import Float, Int

from draftwood.native.rows import topk_probs
from draftwood.rules import Before, TextRule

CANDIDATES = 5
"""Likeliest tokens, one of which is chosen."""
LONGEST = 5
"""Tokens of the longest repeat that is told from longer ones."""


def repeats(tokens: Int[np.ndarray, " text"], candidates: Int[np.ndarray, " few"]) -> list[int]:
    """Length of the longest repeat that each candidate would end, at most ``LONGEST``.

    It is 0 for a token that the text does not hold, and 1 for one that it holds elsewhere only.

    Example:
        Behind 1 2 3 1 2, token 3 would repeat 1 2 3: 3. Token 2 is known, but never followed a 2:
        1. Token 7 is new: 0.
    """
    same = np.zeros(len(tokens), np.int64)  # tokens before each place like those before the next
    alike = np.ones(len(tokens), bool)
    for back in range(1, min(LONGEST, len(tokens))):
        alike[:back] = False
        alike[back:] &= tokens[:-back] == tokens[-back]
        same += alike
    return [
        int(1 + same[there].max()) if (there := tokens == candidate).any() else 0
        for candidate in candidates
    ]


def choose(row: Float[np.ndarray, " vocab"], before: Before, strength: float) -> None:
    """Give the likeliest tokens p - strength * repeat in the place of their probability p.

    Other tokens are banned, as is each that is worth nothing then; the best one never is. Greedily
    this is the paper's rule. At a temperature of 1 tokens are drawn in proportion to their worth,
    which is our reading: the paper draws nothing.
    """
    top, probs = topk_probs(row[None], min(CANDIDATES, len(row)), 1.0)
    worth = probs[0] - strength * np.array(repeats(np.array(before.tokens), top[0]))
    worth[np.isneginf(row[top[0]])] = -np.inf
    best = int(worth.argmax())
    with np.errstate(divide="ignore"):
        scores = np.log(worth.clip(0.0))
    if -np.inf < worth[best] <= 0.0:
        scores[best] = 0.0
    row[:] = -np.inf
    row[top[0]] = scores


MOMENTUM = TextRule(
    "momentum",
    "greedy decoding among the 5 likeliest tokens that pays for each token of a repeat",
    "Lan et al. 2022, arXiv:2212.02175",
    "another aim",
    published=0.2,
    change=choose,
    greatest=1.0,
)
"""Momentum decoding, with the constant penalty of a repeated token as its strength.

From 1 on a longer repeat is worse than a shorter one, whatever their probabilities: no greater
strength writes another text greedily.
"""
