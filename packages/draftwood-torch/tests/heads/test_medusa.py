"""Medusa's heads read one state, Hydra's also what was drafted before them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.heads import folder
from draftwood.heads.medusa import MedusaConfig
from draftwood.heads.trained import TargetFingerprint, TrainedHead
from draftwood.native.formats import HeadSizes
from draftwood_torch.heads.medusa import MedusaHead

DIM = 16
SIZES = HeadSizes(hidden=DIM, intermediate_size=24, heads=4, num_kv_heads=2, head_dim=4)
CONFIG = MedusaConfig(SIZES, heads=3, reads=(4,))
HYDRA = replace(CONFIG, sees_drafted=True)


def head(config: MedusaConfig) -> MedusaHead:
    torch.manual_seed(0)
    net = MedusaHead(config)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return net


def test_a_new_medusa_head_hands_on_the_targets_state() -> None:
    state = torch.randn(5, DIM)
    for level in range(3):
        assert torch.equal(MedusaHead(CONFIG)(level, state, torch.empty(5, 0, DIM)), state)


def test_heads_are_a_residual_block_each() -> None:
    net, state = head(CONFIG), torch.randn(5, DIM)
    for level, block in enumerate(net.blocks):
        inner = state @ block.weight.T  # type: ignore[operator]
        found = net(level, state, torch.empty(5, 0, DIM))
        torch.testing.assert_close(found, state + inner * inner.sigmoid())


@pytest.mark.parametrize(
    ("config", "counts"),
    [(CONFIG, [0, 0, 0]), (replace(CONFIG, reads_root=True), [1, 1, 1]), (HYDRA, [1, 2, 3])],
    ids=["medusa", "with the root", "hydra"],
)
def test_a_head_depends_on_just_the_tokens_that_it_reads(
    config: MedusaConfig, counts: list[int]
) -> None:
    net, state = head(config), torch.randn(DIM)
    tokens = torch.randn(3, DIM)
    for level, count in enumerate(counts):
        assert config.tokens(level) == count
        before = net(level, state, tokens[:count])
        for changed in range(count):
            other = tokens.clone()
            other[changed] = torch.randn(DIM)
            assert not torch.allclose(net(level, state, other[:count]), before, atol=1e-3)


@pytest.mark.parametrize("config", [CONFIG, HYDRA], ids=["medusa", "hydra"])
def test_heads_are_stored_and_read_again(tmp_path: Path, config: MedusaConfig) -> None:
    net = head(config)
    fingerprint = TargetFingerprint("tiny", 64, DIM, 4)
    folder.save(
        tmp_path / "out",
        TrainedHead.with_fingerprint(net, np.arange(9), fingerprint),
        "",
        "float32",
    )
    found = folder.load(tmp_path / "out").network
    assert found.config == config
    for name, weight in net.state_dict().items():
        assert torch.equal(found.state_dict()[name], weight)


@pytest.mark.parametrize(
    ("wrong", "message"), [({"heads": 0}, "at least one head"), ({"reads": (1, 2)}, "one layer")]
)
def test_heads_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **wrong)
