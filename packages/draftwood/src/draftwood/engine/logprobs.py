"""Log-probabilities of emitted tokens, and of a prompt while it is run."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from draftwood.arrays import Float, Int, as_array
from draftwood.models.model import ModelOutput, PromptInput
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


class PromptLogprobs:
    """Read the target's log-probability of each token of a prompt.

    Args:
        prompt: token ids.
        count: most probable tokens to report at each place.

    Attributes:
        chunk: tokens of a prompt in one pass, all of whose logits are held at once.
        found: by place so far; the first token has none.
    """

    chunk: ClassVar[int] = 64

    def __init__(self, prompt: Sequence[int], count: int) -> None:
        self.prompt, self.count = prompt, count
        self.found: list[TokenLogprob | None] = [None]

    def asked(self, wanted: PromptInput) -> PromptInput:
        """The same chunk, with the logits of all places."""
        return replace(wanted, keep="all")

    def read(self, wanted: PromptInput, first: int, output: ModelOutput) -> ModelOutput:
        """Record what a chunk says of the tokens behind it; gives the output that was wanted.

        Args:
            first: place of its first token.
        """
        known = len(self.found) - (first + 1)  # of a text that was preempted and runs again
        if tokens := self.prompt[len(self.found) : first + 1 + len(wanted.tokens)]:
            rows = output.rows[known : known + len(tokens)]
            self.found += token_logprobs(tokens, rows, self.count)
        kept = {"all": output.given, "last": output.given[-1:], "none": output.given[:0]}
        return ModelOutput(kept[wanted.keep], output.hidden)


def _logprob(
    token: int, logits: Float[np.ndarray, " vocab"], best: Int[np.ndarray, " best"]
) -> TokenLogprob:
    highest = logits.max()
    weights = np.exp(logits - highest)
    total = float(weights.sum(dtype=np.float64))
    rest = float(highest) + math.log(total)
    values = (float(logits[each]) - rest for each in best)
    likeliest = dict(zip(best.tolist(), values, strict=True))
    # tokens without weight may have a logit of minus infinity
    mean = float(np.dot(weights, np.where(weights > 0, logits - highest, 0))) / total
    entropy = max(0.0, math.log(total) - mean) / math.log(2)
    return TokenLogprob(token, float(logits[token]) - rest, likeliest, entropy)
