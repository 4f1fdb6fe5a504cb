"""Log-probabilities of emitted tokens."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from draftwood.stats import TokenLogprob


def token_logprobs(
    tokens: Sequence[int], logits: Float[Tensor, "tokens vocab"], count: int
) -> tuple[TokenLogprob, ...]:
    """The target's own log-probabilities, before temperature and penalties.

    Args:
        tokens: emitted ones.
        logits: before each of them.
        count: likeliest tokens that are reported beside each.
    """
    rows = logits.float().cpu().log_softmax(-1)
    best = rows.topk(min(count, rows.shape[-1]), dim=-1)
    return tuple(
        TokenLogprob(
            token, float(row[token]), dict(zip(top.tolist(), values.tolist(), strict=True))
        )
        for token, row, top, values in zip(tokens, rows, best.indices, best.values, strict=True)
    )
