"""Heads for tests, small and of a real size."""

import math
from ctypes import c_float, c_int64

import torch
from torch import Tensor

from draftwood.heads.eagle import EagleConfig
from draftwood.heads.packed import native_eagle
from draftwood.native import library, structures
from draftwood.native.formats import HeadSizes, Products
from draftwood.native.head import NativeHead
from draftwood.native.head_session import HeadSession
from draftwood.native.matrix import Matrix
from draftwood_torch.heads.eagle import EagleHead

TINY = HeadSizes(hidden=32, intermediate_size=48, heads=4, num_kv_heads=2, head_dim=8)
ODD = HeadSizes(hidden=40, intermediate_size=56, heads=3, num_kv_heads=1, head_dim=18)
SMOLLM2 = HeadSizes(576, 1536, heads=9, num_kv_heads=3, head_dim=64, rope_theta=1e5)
VOCABULARY, DRAFTED = 300, 100
CONFIGS = {
    "tiny": EagleConfig(TINY, reads=(1, 2, 4)),
    "two layers": EagleConfig(TINY, layers=2, reads=(1,), feeds_normed=False),
    "window": EagleConfig(TINY, reads=(1, 2), window=5, norms_features=False),
    "odd": EagleConfig(ODD, reads=(1, 2), norm_before_residual=True),
    "two layers, window": EagleConfig(ODD, layers=2, reads=(1, 3), window=4),
}


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def a_head(config: EagleConfig) -> tuple[EagleHead, Tensor]:
    """A head whose layer counts, and output rows."""
    torch.manual_seed(1)
    head = EagleHead(config)
    with torch.no_grad():
        for name, weight in head.named_parameters():
            if weight.ndim == 1:
                weight.add_(0.3 * torch.randn_like(weight))
            elif "fc" not in name:
                weight.mul_(3.0)
    return head, some(DRAFTED, config.sizes.hidden, seed=2) * 1.5 / config.sizes.hidden**0.5


def some_draft_tokens(vocabulary: int = VOCABULARY) -> Tensor:
    return torch.randperm(vocabulary, generator=torch.Generator().manual_seed(3))[:DRAFTED].sort()[
        0
    ]


def a_native(
    config: EagleConfig,
    products: Products = "float32",
    embedding: Tensor | Matrix | None = None,
) -> NativeHead:
    head, rows = a_head(config)
    if embedding is None:
        embedding = some(VOCABULARY, config.sizes.hidden, seed=4)
    tokens = some_draft_tokens(embedding.shape[0])
    given = {"draft_tokens": tokens, "lm_rows": rows, "embedding": embedding}
    return native_eagle(config, head.state_dict(), products=products, **given)


def features_of(config: EagleConfig, rows: int, seed: int = 5) -> Tensor:
    return some(rows, len(config.reads), config.sizes.hidden, seed=seed)


Tree = tuple[list[int], list[int], list[float]]
"""Tokens, parents and log-probabilities of the paths, the root first."""


def drafted(
    session: HeadSession,
    features: Tensor,
    tokens: list[int],
    shape: tuple[int, int, int],
) -> Tree:
    """A tree of so many nodes, levels and rows of a level, in one call as the library's steps make
    it.
    """
    size = 1 + shape[0]
    tree = structures.CHeadTree(
        *(*shape, -math.inf),
        *((c_int64 * size)(), (c_int64 * size)(), (c_float * size)()),
    )
    library.library().draftwood_head_draft(*session.taken(features, tokens), tree, 1)
    size = 1 + tree.nodes
    return tree.tokens[:size], tree.parents[:size], tree.log_probs[:size]
