"""The target's likeliest tokens, packed and read again."""

import zlib

import pytest
import torch

from draftwood_train.data.texts import TopTokens
from draftwood_train.data.tops import STEPS, TopForm


def top_of(places: int, count: int, vocab: int, seed: int = 0) -> TopTokens:
    drawn = torch.Generator().manual_seed(seed)
    logits = torch.randn(places, vocab, generator=drawn) * 4
    best = logits.log_softmax(-1).topk(count)
    return TopTokens(best.indices, best.values, logits.logsumexp(-1))


@pytest.mark.parametrize(("count", "vocab"), [(16, 300), (3, 200_000), (1, 5)])
def test_what_is_packed_is_read_again(count: int, vocab: int) -> None:
    top, form = top_of(9, count, vocab), TopForm.of(count, vocab)
    packed = form.packed(top)
    assert packed == form.packed(top_of(9, count, vocab))
    assert packed != form.packed(top_of(9, count, vocab, seed=1))
    read = form.unpacked(packed, 9)
    assert torch.equal(read.tokens, top.tokens)
    assert torch.equal(read.log_normalizer, top.log_normalizer)
    assert bool(((read.logs - top.logs).abs() <= 0.51 / STEPS).all())


def test_what_is_read_packs_to_the_same_bytes() -> None:
    form = TopForm.of(16, 300)
    packed = form.packed(top_of(40, 16, 300))
    assert form.packed(form.unpacked(packed, 40)) == packed


def test_the_rest_is_what_the_likeliest_leave() -> None:
    top = top_of(9, 4, 300)
    assert torch.allclose(top.rest + top.logs.exp().sum(-1), torch.ones(9))
    assert bool((top.rest > 0).all())


def test_a_token_without_probability_is_as_unlikely_as_can_be_told() -> None:
    top = TopTokens(
        torch.tensor([[3, 1]]), torch.tensor([[0.0, float("-inf")]]), torch.tensor([7.0])
    )
    read = TopForm.of(2, 9).unpacked(TopForm.of(2, 9).packed(top), 1)
    assert read.logs[0].exp().tolist() == pytest.approx([1, 0])


def test_damaged_bytes_are_refused() -> None:
    form = TopForm.of(4, 300)
    packed = form.packed(top_of(9, 4, 300))
    with pytest.raises(ValueError, match="cannot be unpacked"):
        form.unpacked(packed[:-5], 9)
    for other in (8, 10):
        with pytest.raises(ValueError, match="more or fewer"):
            form.unpacked(packed, other)
    with pytest.raises(ValueError, match="more or fewer"):
        form.unpacked(zlib.compress(b"abc"), 9)
