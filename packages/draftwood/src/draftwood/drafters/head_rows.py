"""Rows of a trained head's cache: those of the text first, what is drafted behind them."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.heads.eagle import EagleConfig
from draftwood.heads.layers import HeadCache, causal
from draftwood.heads.lm import LmConfig
from draftwood.models.model import CHUNK
from draftwood.tree import DraftTree

Layout = tuple[Int[Tensor, " new"], Bool[Tensor, "new context"]]
"""Places of new rows in the text, and which rows each of them sees."""


class HeadRows:
    """The cache of one text, and where in it new rows lie.

    Args:
        config: layers and window of the head.
        like: a tensor whose dtype and device the cache takes.

    Attributes:
        text: rows of the text. The newest is the root's, below which trees grow.
    """

    def __init__(self, config: EagleConfig | LmConfig, like: Tensor) -> None:
        self.cache = HeadCache(config.layers, config.sizes, like)
        self.window, self.device = config.window, like.device
        self.text = 0

    def chunks(self, count: int) -> Iterator[tuple[slice, Layout]]:
        """Further rows of the text, a chunk at a time: which of ``count`` these are."""
        for first in range(0, count, CHUNK):
            rows = min(CHUNK, count - first)
            places = torch.arange(self.text, self.text + rows, device=self.device)
            seen = causal(rows, self.text, self.window, self.device)
            yield slice(first, first + rows), (places, seen)
            self.text += rows

    def below(self, tree: DraftTree, first: int) -> Layout:
        """Nodes of a tree from ``first`` on: each sees the text, its ancestors and itself."""
        depths, ancestors = tree.depths.to(self.device), tree.ancestors.to(self.device)
        context = torch.arange(self.text, device=self.device)
        places = torch.cat([context, self.text - 1 + depths[1:]])
        own = self.text - 1 + depths[first:]
        seen = torch.cat([ancestors.new_ones(len(own), self.text), ancestors[first:, 1:]], dim=-1)
        if self.window is not None:
            seen &= own[:, None] - places < self.window
        return own, seen

    def drop(self) -> None:
        """Forget what was drafted."""
        self.cache.keep(self.text)

    def copy(self, other: "HeadRows", count: int) -> bool:
        """Take over ``count`` rows of another text with the same beginning, where it has them."""
        if not other.text >= count > self.text:
            return False
        self.cache.copy(other.cache, count)
        self.text = count
        return True
