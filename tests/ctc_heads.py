"""Small CTC heads, and the frames that they draft with a cache."""

from dataclasses import replace
from typing import Any

import torch

from draftwood.heads.ctc import CtcConfig
from draftwood.native.formats import HeadSizes
from draftwood_torch.heads.ctc import CtcHead
from draftwood_torch.heads.layers import HeadCache

SIZES = HeadSizes(hidden=32, intermediate_size=48, heads=4, num_kv_heads=2, head_dim=8)
CONFIG = CtcConfig(SIZES, frames=5, reads=(4,))


def head(**more: Any) -> CtcHead:
    """Make a head whose parts all matter, with this in the place of what ``CONFIG`` says."""
    torch.manual_seed(0)
    net = CtcHead(replace(CONFIG, **more))
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return net


def drafted(net: CtcHead, rows: torch.Tensor, pieces: tuple[int, ...]) -> torch.Tensor:
    """Frames after the last row, whose rows come in pieces."""
    cache = HeadCache(net.config.layers, SIZES, rows)
    states = torch.empty(0)
    for piece in rows.split(list(pieces)):
        states = net.draft(cache, piece)
    assert cache.length == len(rows)
    return states
