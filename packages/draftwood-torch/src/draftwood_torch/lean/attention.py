"""Attention of a forward pass over several sequences, and of families whose scores are bounded."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.models.decoder import Decoder
from draftwood_torch.lean.layer import TreeAttention
from draftwood_torch.models.pool import CachePool
from draftwood_torch.models.tensor_input import TensorInput


class PackedAttention:
    """``Attend`` for sequences whose rows lie below each other; masks are made once for all layers.

    Args:
        windows: those that layers have.
    """

    def __init__(
        self,
        decoder: Decoder,
        pool: CachePool,
        parts: Sequence[TensorInput],
        windows: Sequence[int | None],
    ) -> None:
        self.counts = [part.place.count for part in parts]
        self.group = decoder.sizes.heads // decoder.sizes.num_kv_heads
        self.growth = query_growth(decoder, [part.positions for part in parts])
        bounded = has_own_scores(decoder)
        self.each = [
            ScoredTreeAttention(decoder, pool, part, windows)
            if bounded
            else TreeAttention(pool, part, windows, self.group)
            for part in parts
        ]

    def __call__(
        self, index: int, window: int | None, query: Tensor, key: Tensor, value: Tensor
    ) -> Float[Tensor, "shared stacked dim"]:
        if self.growth is not None:
            query = query * self.growth.to(query).repeat_interleave(self.group)[:, None]
        queries = query.split([self.group * count for count in self.counts], dim=1)
        pieces = zip(
            self.each, queries, key.split(self.counts), value.split(self.counts), strict=True
        )
        attended = [attend(index, window, *piece) for attend, *piece in pieces]
        return attended[0] if len(attended) == 1 else torch.cat(attended, dim=1)


def query_growth(
    decoder: Decoder, positions: Sequence[Int[Tensor, " rows"]]
) -> Float[Tensor, " rows"] | None:
    """Factors of queries behind the first texts of training; None for models without."""
    scales = decoder.scales
    if not scales.query_growth:
        return None
    periods = torch.floor(torch.cat([*positions]) / scales.growth_every)
    return 1 + scales.query_growth * torch.log(1 + periods)


def has_own_scores(decoder: Decoder) -> bool:
    """True if scores are capped, or compete with one that stands for nothing."""
    sinks = any(layer.sinks is not None for layer in decoder.layers)
    return sinks or decoder.scales.score_cap is not None


class ScoredTreeAttention(TreeAttention):
    """Attention of one sequence's nodes in a decoder that ``has_own_scores``."""

    def __init__(
        self,
        decoder: Decoder,
        pool: CachePool,
        part: TensorInput,
        windows: Sequence[int | None],
    ) -> None:
        self.group = decoder.sizes.heads // decoder.sizes.num_kv_heads
        super().__init__(pool, part, windows, self.group)
        self.cap, self.sinks = decoder.scales.score_cap, [each.sinks for each in decoder.layers]

    def __call__(
        self, index: int, window: int | None, query: Tensor, key: Tensor, value: Tensor
    ) -> Float[Tensor, "shared stacked dim"]:
        keys, values = self.stored(index, key, value)
        sinks, bias = self.sinks[index], torch.where(self.masks[window], 0.0, -torch.inf)
        if sinks is not None:
            sinks = sinks.unflatten(0, (-1, self.group)).repeat(1, len(bias) // self.group)
        return scored_attention(query.to(keys.dtype), keys, values, bias, self.cap, sinks)


def scored_attention(
    query: Float[Tensor, "heads rows dim"],
    keys: Float[Tensor, "heads context dim"],
    values: Float[Tensor, "heads context dim"],
    bias: Float[Tensor, "rows context"],
    cap: float | None = None,
    sinks: Float[Tensor, "heads rows"] | None = None,
) -> Float[Tensor, "heads rows dim"]:
    """Attention with scores that stay within ``cap`` (Gemma Team 2024, arXiv:2408.00118), or with
    a score for something that holds nothing (OpenAI 2025, arXiv:2508.10925).

    No fused attention of PyTorch has these, so this goes through all scores, in the types in which
    Transformers does.
    """
    scores = query @ keys.transpose(1, 2) * query.shape[-1] ** -0.5
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    scores = scores + bias
    if sinks is not None:
        scores = torch.cat([scores, sinks[..., None].to(scores.dtype)], dim=-1)
    weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
    return weights[..., : values.shape[1]] @ values
