"""Losses that compare a drafter's distribution with its target's, with gradients in pieces.

Both distributions are over the draft vocabulary alone. The target's probabilities p are the true
ones, whose sum there is less than 1; q sums to 1. The overlap takes p as it is, since a token
outside the draft vocabulary is never drafted; the divergence takes p made to sum to 1, since q can
reach no other.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]
"""Function from KL(p || q) in nats and the overlap, sum of min(p, q), of each row to its loss."""

CHUNK = 128
"""Rows whose distributions are in memory at once: few enough for the CPU's caches."""

LIKELY = 0.01
"""Probability at one of the rows that makes a token one of those that are never sampled."""


def kl(divergence: Float[Tensor, " rows"], overlap: Float[Tensor, " rows"]) -> Tensor:
    """KL(p || q), p made to sum to 1 over the draft vocabulary."""
    return divergence


def tv(divergence: Float[Tensor, " rows"], overlap: Float[Tensor, " rows"]) -> Tensor:
    """Total variation: 1 - overlap. Its gradient vanishes if both are disjoint."""
    return 1 - overlap


def nla(divergence: Float[Tensor, " rows"], overlap: Float[Tensor, " rows"]) -> Tensor:
    """Negative log of the acceptance probability, which is the overlap."""
    return -overlap.clamp_min(1e-6).log()


def lk_hybrid(divergence: Float[Tensor, " rows"], overlap: Float[Tensor, " rows"]) -> Tensor:
    """KL while little is accepted, total variation afterwards (arXiv:2602.23881).

    Their shares are w = exp(-3 a) and 1 - w, a being the overlap, without a gradient.
    """
    share = torch.exp(-3 * overlap.detach())
    return share * divergence + (1 - share) * (1 - overlap)


LOSSES: dict[str, Loss] = {"kl": kl, "tv": tv, "nla": nla, "lk-hybrid": lk_hybrid}


def loss_at(name: str, lk_from: float, progress: float) -> Loss:
    """Return the loss of this name, or lk-hybrid once a share of the training is done."""
    return LOSSES["lk-hybrid" if progress >= lk_from else name]


@dataclass(frozen=True, eq=False)
class Compared:
    """Two distributions over the draft vocabulary, row by row.

    Attributes:
        q: of the drafter.
        p: the target's true probabilities.
        mass: their sum.
    """

    q: Float[Tensor, "rows vocab"]
    p: Float[Tensor, "rows vocab"]
    mass: Float[Tensor, "rows 1"]
    divergence: Float[Tensor, " rows"]
    overlap: Float[Tensor, " rows"]

    @classmethod
    def of(
        cls,
        logits: Float[Tensor, "rows vocab"],
        target: Float[Tensor, "rows vocab"],
        log_normalizer: Float[Tensor, " rows"],
    ) -> "Compared":
        """Compare a drafter's logits with the target's, both in float32; overwrites the latter.

        Args:
            log_normalizer: of the target's, over its whole vocabulary.
        """
        log_q = logits.log_softmax(-1)
        log_p = target.sub_(log_normalizer[:, None])
        p, q = log_p.exp(), log_q.exp()
        mass = p.sum(-1, keepdim=True).clamp_min(1e-12)
        # KL of p / mass: the mean of log p - log q, less the log of the mass
        mean = torch.linalg.vecdot(p, log_p.sub_(log_q)) / mass[:, 0]
        overlap = torch.minimum(p, q, out=log_q).sum(-1)
        return cls(q, p, mass, mean - mass[:, 0].log(), overlap)

    def slope(
        self, by_divergence: Float[Tensor, " rows"], by_overlap: Float[Tensor, " rows"]
    ) -> Float[Tensor, "rows vocab"]:
        """Gradient by the drafter's logits, given the gradients by both figures."""
        slope = self.q - self.p / self.mass
        slope *= by_divergence[:, None]
        if bool((by_overlap == 0).all()):
            return slope
        below = self.q * (self.q < self.p)
        below -= below.sum(-1, keepdim=True) * self.q
        return slope.addcmul_(below, by_overlap[:, None])


def head_losses(
    states: Float[Tensor, "rows dim"],
    final: Float[Tensor, "rows dim"],
    log_normalizer: Float[Tensor, " rows"],
    head: Float[Tensor, "vocab dim"],
    loss: Loss,
    sampled: int = 0,
) -> tuple[Float[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Compute the loss and the overlap of each row behind the target's frozen output head.

    Distributions are made a few rows at a time and never kept: forward also computes the gradient.

    Args:
        states: of the drafter, normed.
        final: the target's, after its final norm.
        head: rows of the output head; their type is that of the products.
        sampled: tokens drawn of those that are unlikely at all of these rows, which stand for the
            rest of them (Jean et al. 2015, arXiv:1412.2007); 0 takes every token.
    """
    return _HeadLosses.apply(  # type: ignore[return-value]
        states, final, log_normalizer, head, loss, sampled
    )


def sampled_tokens(
    log_p: Float[Tensor, "rows vocab"], count: int
) -> tuple[Int[Tensor, " chosen"], Float[Tensor, " chosen"]]:
    """Choose the tokens that are likely at some row, and ``count`` of the others at random.

    Returns:
        The tokens, and the log of how many tokens each of them stands for.
    """
    likely = (log_p > math.log(LIKELY)).any(0)
    rest = len(likely) - int(likely.sum())
    if rest <= count:
        return torch.arange(len(likely), device=log_p.device), log_p.new_zeros(len(likely))
    lots = torch.rand(len(likely), device=log_p.device).masked_fill(likely, -1)
    chosen = torch.cat([likely.nonzero()[:, 0], lots.topk(count).indices])
    stands_for = log_p.new_zeros(len(chosen))
    stands_for[-count:] = math.log(rest / count)
    return chosen, stands_for


def _compared(
    own: Tensor, true: Tensor, log_normalizer: Tensor, head: Tensor, sampled: int
) -> tuple[Compared, Tensor]:
    """Compare the distributions behind two states; also return the rows of the head that it took.

    A token that stands for others counts with as many times its probability.
    """
    target = functional.linear(true, head).float()
    if not sampled:
        return Compared.of(functional.linear(own, head).float(), target, log_normalizer), head
    chosen, stands_for = sampled_tokens(target - log_normalizer[:, None], sampled)
    rows = head[chosen]
    logits = functional.linear(own, rows).float() + stands_for
    return Compared.of(logits, target[:, chosen] + stands_for, log_normalizer), rows


class _HeadLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        final: Tensor,
        log_normalizer: Tensor,
        head: Tensor,
        loss: Loss,
        sampled: int,
    ) -> tuple[Tensor, Tensor]:
        gradient = torch.empty_like(states, dtype=torch.float32)
        losses, overlaps = states.new_empty((2, len(states)), dtype=torch.float32)
        own, true = states.detach().to(head.dtype), final.to(head.dtype)
        with torch.autocast(states.device.type, enabled=False):
            for start in range(0, len(states), CHUNK):
                part = slice(start, start + CHUNK)
                both, vocabulary = _compared(
                    own[part], true[part], log_normalizer[part], head, sampled
                )
                with torch.enable_grad():
                    pair = (both.divergence.requires_grad_(), both.overlap.requires_grad_())
                    each = loss(*pair)
                    slopes = torch.autograd.grad(each.sum(), pair, materialize_grads=True)
                losses[part], overlaps[part] = each.detach(), both.overlap.detach()
                gradient[part] = (both.slope(*slopes).to(head.dtype) @ vocabulary).float()
        ctx.save_for_backward(gradient.to(states.dtype))
        ctx.mark_non_differentiable(overlaps)
        return losses, overlaps

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, outer: Tensor, _: Tensor
    ) -> tuple[Tensor, None, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[:, None].to(gradient.dtype), None, None, None, None, None
