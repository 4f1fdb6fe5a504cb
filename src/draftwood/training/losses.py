"""Losses that compare a drafter's distribution with its target's, and their gradient in pieces.

Both are told over the draft vocabulary alone. The target's probabilities p are the true ones, whose
sum there is less than 1; q sums to 1. What is said of acceptance takes p as it is, since a token
outside the draft vocabulary is never drafted; the divergence takes p made to sum to 1, since q can
reach no other.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]
"""From the log of q and of p, both [rows draft_vocab] in float32, to the loss of each row."""

CHUNK = 256
"""Rows whose distributions are in memory at once: few enough for the CPU's caches."""


def kl(log_q: Float[Tensor, "rows vocab"], log_p: Float[Tensor, "rows vocab"]) -> Tensor:
    """KL(p || q) in nats, p made to sum to 1 over the draft vocabulary."""
    log_p = log_p.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def overlap(log_q: Float[Tensor, "rows vocab"], log_p: Float[Tensor, "rows vocab"]) -> Tensor:
    """Sum of min(p, q): the chance that a token drawn from q is accepted in the target's place."""
    return torch.minimum(log_q, log_p).exp().sum(-1)


def tv(log_q: Float[Tensor, "rows vocab"], log_p: Float[Tensor, "rows vocab"]) -> Tensor:
    """Total variation: 1 - overlap. Its gradient vanishes where both do not meet at all."""
    return 1 - overlap(log_q, log_p)


def nla(log_q: Float[Tensor, "rows vocab"], log_p: Float[Tensor, "rows vocab"]) -> Tensor:
    """Negative log of the chance of acceptance."""
    return -overlap(log_q, log_p).clamp_min(1e-9).log()


def lk_hybrid(log_q: Float[Tensor, "rows vocab"], log_p: Float[Tensor, "rows vocab"]) -> Tensor:
    """KL while little is accepted, total variation afterwards (arXiv:2602.23881).

    Their shares are w = exp(-3 a) and 1 - w, a being the overlap, without a gradient.
    """
    accepted = overlap(log_q, log_p)
    share = torch.exp(-3 * accepted.detach())
    return share * kl(log_q, log_p) + (1 - share) * (1 - accepted)


LOSSES: dict[str, Loss] = {"kl": kl, "tv": tv, "nla": nla, "lk-hybrid": lk_hybrid}


def head_losses(
    states: Float[Tensor, "rows dim"],
    final: Float[Tensor, "rows dim"],
    log_normalizer: Float[Tensor, " rows"],
    head: Float[Tensor, "vocab dim"],
    loss: Loss,
) -> Float[Tensor, " rows"]:
    """The loss of each row behind the target's frozen output head.

    Distributions are made a few rows at a time and never kept: forward also computes the gradient.

    Args:
        states: of the drafter, normed.
        final: the target's, after its final norm.
        head: rows of the output head; their type is that of the products.
    """
    return _HeadLosses.apply(states, final, log_normalizer, head, loss)  # type: ignore[no-any-return]


class _HeadLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, final: Tensor, log_normalizer: Tensor, head: Tensor, loss: Loss
    ) -> Tensor:
        gradient = torch.empty_like(states, dtype=torch.float32)
        losses = torch.empty(len(states), dtype=torch.float32, device=states.device)
        device = states.device.type
        with torch.autocast(device, enabled=False):
            for start in range(0, len(states), CHUNK):
                part = slice(start, start + CHUNK)
                logits = functional.linear(states[part].detach().to(head.dtype), head).float()
                log_p = log_probs(final[part], log_normalizer[part], head)
                with torch.enable_grad():
                    logits.requires_grad_()
                    each = loss(logits.log_softmax(-1), log_p)
                    (slope,) = torch.autograd.grad(each.sum(), logits)
                losses[part] = each.detach()
                gradient[part] = (slope.to(head.dtype) @ head).float()
        ctx.save_for_backward(gradient.to(states.dtype))
        return losses

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None, None, None]:  # type: ignore[override]
        (gradient,) = ctx.saved_tensors
        return gradient * outer[:, None].to(gradient.dtype), None, None, None, None


def log_probs(
    final: Float[Tensor, "rows dim"],
    log_normalizer: Float[Tensor, " rows"],
    head: Float[Tensor, "vocab dim"],
) -> Float[Tensor, "rows vocab"]:
    """Log of the target's true probabilities over the draft vocabulary."""
    return functional.linear(final.to(head.dtype), head).float() - log_normalizer[:, None]
