"""A draft LM begins as a part of its target, and its cache changes nothing."""

import pytest
import torch

from draftwood.heads.lm import LmConfig
from draftwood.native.formats import HeadSizes
from draftwood_torch.heads.layers import HeadCache, causal
from draftwood_torch.heads.lm import LmHead

SIZES = HeadSizes(hidden=32, intermediate_size=48, heads=4, num_kv_heads=2, head_dim=8)


@pytest.mark.parametrize("layers", [1, 3])
def test_rows_one_by_one_equal_rows_at_once(layers: int) -> None:
    torch.manual_seed(0)
    net, embedded, places = LmHead(LmConfig(SIZES, layers)), torch.randn(7, 32), torch.arange(7)
    wanted = net(embedded, places, HeadCache(layers, SIZES, embedded).attend(causal(7)))
    cache = HeadCache(layers, SIZES, embedded)
    found = [
        net(embedded[n : n + 1], places[n : n + 1], cache.attend(causal(1, n))) for n in range(7)
    ]
    torch.testing.assert_close(torch.cat(found), wanted, atol=1e-5, rtol=1e-5)


def test_it_equals_a_llama_of_the_same_weights() -> None:
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(1)
    model = LlamaModel(
        LlamaConfig(
            vocab_size=40,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        )
    ).eval()
    net = LmHead(LmConfig(SIZES, 2))
    saved = {name: each for name, each in model.state_dict().items() if "embed" not in name}
    net.load_state_dict({**saved, "proj.weight": torch.eye(32)})
    tokens = torch.tensor([3, 9, 27, 1, 3])
    wanted = model(tokens[None]).last_hidden_state[0]
    embedded = model.embed_tokens(tokens)
    found = net(embedded, torch.arange(5), HeadCache(2, SIZES, embedded).attend(causal(5)))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        net.proj.weight.mul_(1.5)
    other = net(embedded, torch.arange(5), HeadCache(2, SIZES, embedded).attend(causal(5)))
    assert not torch.allclose(other, wanted, atol=1e-3)
