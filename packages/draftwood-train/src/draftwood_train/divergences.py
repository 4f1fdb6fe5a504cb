"""Divergences between whole distributions, for distillation.

They are over the draft vocabulary, where the target's probabilities are made to sum to 1.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from draftwood_train.losses import CHUNK

Divergence = Callable[[Tensor, Tensor], Tensor]
"""Function from log q and log p, both [rows draft_vocab], to the divergence of each row in nats."""


def reverse_kl(log_q: Float[Tensor, "rows vocab"], log_p: Float[Tensor, "rows vocab"]) -> Tensor:
    """Reverse KL(q || p): mode-seeking."""
    return (log_q.exp() * (log_q - log_p)).sum(-1)


def jsd(log_q: Float[Tensor, "rows vocab"], log_p: Float[Tensor, "rows vocab"]) -> Tensor:
    """Jensen-Shannon divergence: the mean of KL from both to their mean."""
    p, q = log_p.exp(), log_q.exp()
    log_mean = ((p + q) / 2).clamp_min(1e-30).log()
    return ((p * (log_p - log_mean)).sum(-1) + (q * (log_q - log_mean)).sum(-1)) / 2


DIVERGENCES: dict[str, Divergence] = {"reverse-kl": reverse_kl, "jsd": jsd}


def divergences(
    states: Float[Tensor, "rows dim"],
    final: Float[Tensor, "rows dim"],
    head: Float[Tensor, "vocab dim"],
    divergence: Divergence,
) -> Float[Tensor, " rows"]:
    """Compute the divergence of each row behind the target's frozen output head.

    Distributions are made a few rows at a time, once forward and once backward.
    """

    def some(own: Tensor, true: Tensor) -> Tensor:
        log_q = functional.linear(own.to(head.dtype), head).float().log_softmax(-1)
        log_p = functional.linear(true.to(head.dtype), head).float().log_softmax(-1)
        return divergence(log_q, log_p)

    pieces = [
        checkpoint(some, own, true, use_reentrant=False)
        for own, true in zip(states.split(CHUNK), final.split(CHUNK), strict=True)
    ]
    return torch.cat(pieces) if pieces else states.new_zeros(0)
