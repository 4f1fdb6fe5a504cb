"""An EAGLE head reads what it says it reads, and its cache changes nothing."""

import pytest
import torch

from draftwood.heads.eagle import EagleConfig
from draftwood.native.formats import HeadSizes
from draftwood.testing import tiny_llama
from draftwood_torch.heads.eagle import EagleHead
from draftwood_torch.heads.layers import HeadCache, causal
from draftwood_torch.heads.placed import placed
from draftwood_torch.models.transformers import TransformersModel
from tiny_heads import tiny_eagle

FSPAD = {"feeds_normed": False, "feature_sampling": True, "partial_alignment": True}
SIZES = HeadSizes(hidden=32, intermediate_size=48, heads=4, num_kv_heads=2, head_dim=8)


def head(layers: int = 1, **more: bool) -> EagleHead:
    torch.manual_seed(0)
    return EagleHead(EagleConfig(SIZES, layers=layers, reads=(1, 2, 4), **more))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("settings", [{"feeds_normed": True}, {"feeds_normed": False}, FSPAD])
def test_rows_one_by_one_equal_rows_at_once(layers: int, settings: dict[str, bool]) -> None:
    net = head(layers, **settings)
    embedded, features = torch.randn(9, 32), torch.randn(9, 3, 32)
    places = torch.arange(9)
    whole = HeadCache(layers, SIZES, embedded).attend(causal(9))
    _, wanted = net(embedded, net.combine(features), places, whole)

    cache = HeadCache(layers, SIZES, embedded)
    found = []
    for first, last in ((0, 4), (4, 5), (5, 9)):
        attend = cache.attend(causal(last - first, first))
        rows = slice(first, last)
        found.append(net(embedded[rows], net.combine(features[rows]), places[rows], attend)[1])
    torch.testing.assert_close(torch.cat(found), wanted, atol=1e-5, rtol=1e-5)


def test_dropped_rows_leave_no_trace() -> None:
    net = head()
    embedded, state = torch.randn(70, 32), torch.randn(70, 32)
    cache = HeadCache(1, SIZES, embedded)
    net(embedded[:68], state[:68], torch.arange(68), cache.attend(causal(68)))  # memory grew
    wanted = net(embedded[68:], state[68:], torch.arange(68, 70), cache.attend(causal(2, 68)))[1]
    cache.keep(68)
    net(state[:2], embedded[:2], torch.arange(68, 70), cache.attend(causal(2, 68)))
    cache.keep(68)
    again = net(embedded[68:], state[68:], torch.arange(68, 70), cache.attend(causal(2, 68)))[1]
    assert torch.equal(again, wanted)


def test_each_feature_is_normed_alone() -> None:
    net, features = head(), torch.randn(5, 3, 32)
    scaled = features * torch.tensor([1.0, 100.0, 0.2])[:, None]
    torch.testing.assert_close(net.combine(scaled), net.combine(features), atol=1e-3, rtol=1e-3)
    plain = head(norms_features=False)
    assert not torch.allclose(plain.combine(scaled), plain.combine(features), atol=0.1)


def test_the_token_chooses_what_is_read_of_a_state() -> None:
    net, state = head(**FSPAD), torch.randn(1, 32)
    with torch.no_grad():
        net.sampling.joined.weight[:, :32] = 0.0  # all that is left of the token is its gate
        assert not torch.allclose(*net.sampling(torch.randn(2, 32), state.expand(2, -1)), atol=0.01)
        net.sampling.mlp.down_proj.weight[:] = 0.0
        torch.testing.assert_close(*net.sampling(torch.randn(2, 32), state.expand(2, -1)))


def test_what_is_read_and_what_goes_back_in_are_two_states() -> None:
    net, places = head(**FSPAD), torch.arange(3)
    rows, state = torch.randn(3, 32), torch.randn(3, 32)

    def both() -> tuple[torch.Tensor, torch.Tensor]:
        return net(rows, state, places, HeadCache(1, SIZES, rows).attend(causal(3)))

    fed, read = both()
    with torch.no_grad():
        net.layers[0].mlp.down_proj.weight[32:] *= 2.0  # of the state that goes back in
    other, same = both()
    assert torch.equal(same, read)
    assert not torch.allclose(other, fed)


def test_a_head_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one layer"):
        EagleConfig(SIZES, layers=0)
    with pytest.raises(ValueError, match="not normed"):
        EagleConfig(SIZES, partial_alignment=True)
    with pytest.raises(ValueError, match="multiple of num_kv_heads"):
        HeadSizes(hidden=8, intermediate_size=8, heads=3, num_kv_heads=2, head_dim=4)


def test_a_bias_of_the_targets_output_head_is_in_the_logits() -> None:
    hf_model = tiny_llama(layers=4)
    hf_model.lm_head.bias = torch.nn.Parameter(torch.randn(hf_model.config.vocab_size))
    target, tokens = TransformersModel(hf_model), torch.arange(5, 30)
    trained, states = tiny_eagle(target, tokens.tolist()), torch.randn(3, target.hidden_size)
    wanted = target.embeddings_and_head.logits(states, tokens, normed=True)
    torch.testing.assert_close(placed(trained, target).logits(states), wanted)
