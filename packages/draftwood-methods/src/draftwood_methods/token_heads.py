"""Heads that read a text's tokens alone: what their networks have in common."""

import torch
from torch import nn

from draftwood.native.formats import HeadSizes
from draftwood_torch.heads import layers


class TokenHead(nn.Module):
    """Base of networks whose layers read the target's embedding of tokens.

    A projection behind the embedding starts as the identity.

    Args:
        sizes: of the layers.
        count: of the layers.
    """

    def __init__(self, sizes: HeadSizes, count: int) -> None:
        super().__init__()
        self.proj = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        with torch.no_grad():
            nn.init.eye_(self.proj.weight)
        self.layers = nn.ModuleList(layers.DecoderLayer(sizes) for _ in range(count))
