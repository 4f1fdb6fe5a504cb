"""Losses and their gradients in closed form, beside PyTorch's own."""

import pytest
import torch
from torch import Tensor

from draftwood_train import losses
from draftwood_train.losses import LOSSES, Compared, head_losses

ROWS, VOCAB, DIM = 300, 50, 8  # more rows than a chunk has


def case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    head = torch.randn(VOCAB, DIM)
    states, final = torch.randn(2, ROWS, DIM)
    normalizer = (final @ head.T).logsumexp(-1) + torch.rand(ROWS)  # part of p lies outside
    return states, final, normalizer, head


def plain(name: str, states: Tensor, final: Tensor, normalizer: Tensor, head: Tensor) -> Tensor:
    """The same by its definition."""
    q = (states @ head.T).softmax(-1)
    p = (final @ head.T - normalizer[:, None]).exp()
    whole = p / p.sum(-1, keepdim=True)
    divergence = (whole * (whole.log() - q.log())).sum(-1)
    accepted = torch.minimum(p, q).sum(-1)
    share = torch.exp(-3 * accepted).detach()
    return {
        "kl": divergence,
        "tv": 1 - accepted,
        "nla": -accepted.log(),
        "lk-hybrid": share * divergence + (1 - share) * (1 - accepted),
    }[name]


@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients_are_those_of_the_definition(name: str) -> None:
    states, final, normalizer, head = case()
    weights, own, other = torch.rand(ROWS), states.clone().requires_grad_(), states.clone()
    other.requires_grad_()
    found, overlap = head_losses(own, final, normalizer, head, LOSSES[name])
    wanted = plain(name, other, final, normalizer, head)
    (found * weights).sum().backward()
    (wanted * weights).sum().backward()
    assert own.grad is not None
    assert other.grad is not None
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(own.grad, other.grad, rtol=1e-3, atol=1e-5)
    assert not overlap.requires_grad
    torch.testing.assert_close(overlap, 1 - plain("tv", states, final, normalizer, head))


def test_losses_differ_from_each_other() -> None:
    values = [plain(name, *case()).mean() for name in LOSSES]
    assert len({round(float(value), 3) for value in values}) == len(LOSSES)


def test_true_probabilities_bound_the_overlap() -> None:
    _, final, normalizer, head = case()
    logits = final @ head.T
    both = Compared.of(logits.clone(), logits.clone(), normalizer)
    torch.testing.assert_close(both.divergence, torch.zeros(ROWS), rtol=0, atol=1e-5)
    torch.testing.assert_close(both.overlap, both.mass[:, 0])
    assert float(both.mass.max()) < 1


def test_a_step_against_the_gradient_lowers_each_loss() -> None:
    states, final, normalizer, head = case()
    for loss in LOSSES.values():
        own = states.clone().requires_grad_()
        before, _ = head_losses(own, final, normalizer, head, loss)
        before.sum().backward()
        assert own.grad is not None
        after, _ = head_losses(own.detach() - 0.05 * own.grad, final, normalizer, head, loss)
        assert float(after.mean()) < float(before.detach().mean())
    assert losses.CHUNK < ROWS
