"""LongSpec head: a layer with a short memory of its own that reads the target's cache."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from draftwood.heads.shapes import TensorShapes
from draftwood.native.formats import HeadSizes
from draftwood_torch.heads import layers

CacheRule = Callable[[Float[Tensor, "... heads rows dim"]], Float[Tensor, "... heads rows dim"]]
"""Attention of queries over the target's own keys and values."""


@dataclass(frozen=True)
class LongspecConfig:
    """Settings of a LongSpec head.

    Attributes:
        sizes: of its layer, whose attention has the target's heads.
        layer: the target's, whose keys and values it reads.
        window: newest tokens of which it keeps keys and values of its own.
        reads_cache: whether it reads the target's at all; a control does not, and sees its window
            alone.
    """

    kind: ClassVar[str] = "longspec"
    sizes: HeadSizes
    layer: int = 0
    window: int = 512
    reads_cache: bool = True

    @property
    def reads(self) -> tuple[int, ...]:
        """No layers: it reads the target's cache in the place of its states."""
        return ()

    def __post_init__(self) -> None:
        if self.window < 1 or self.layer < 0:
            raise ValueError(
                "a LongSpec head has a window of at least one token and reads a layer from 0 on,"
                f" got {self.window} and {self.layer}"
            )

    def shapes(self) -> TensorShapes:
        """Shapes of the weights, by their names in ``LongspecHead``."""
        sizes, found = self.sizes, TensorShapes(self.sizes)
        found.layer("layer.")
        if self.reads_cache:
            found.norm("cross_layernorm")
            found.matrix("cross_q_proj", sizes.heads * sizes.head_dim, sizes.hidden)
            found.matrix("cross_o_proj", sizes.hidden, sizes.heads * sizes.head_dim)
        found.norm("norm")
        return found


class LongspecHead(nn.Module):
    """Drafts from a window of tokens and from the target's cache (LongSpec, Yang et al. 2025,
    arXiv:2502.17421), so that its own memory does not grow with the text.

    Row t reads the embedding of the token at t, attends to the newest rows, then to the target's
    keys and values of one layer, as far as the target has run, and gives the state from which the
    token at t + 1 follows. The window's keys and values come from embeddings alone, so that rows
    of the text are never run but the newest.

    The embedding of tokens and the rows of the output head are the target's and not part of it.
    """

    config_type: ClassVar[type[LongspecConfig]] = LongspecConfig

    def __init__(self, config: LongspecConfig) -> None:
        super().__init__()
        self.config, sizes = config, config.sizes
        self.layer = layers.DecoderLayer(sizes)
        if config.reads_cache:
            width = sizes.heads * sizes.head_dim
            self.cross_layernorm = layers.RmsNorm(sizes.hidden, sizes.epsilon)
            self.cross_q_proj = nn.Linear(sizes.hidden, width, bias=False)
            self.cross_o_proj = nn.Linear(width, sizes.hidden, bias=False)
        self.norm = layers.RmsNorm(sizes.hidden, sizes.epsilon)

    def forward(
        self,
        embedded: Float[Tensor, "... rows dim"],
        positions: Int[Tensor, "... rows"],
        attend: layers.AttentionRule,
        read: CacheRule,
    ) -> Float[Tensor, "... rows dim"]:
        """The states that the output head reads.

        Args:
            embedded: the target's embedding of the tokens.
            positions: of the tokens, for the rotary embedding.
            attend: which rows see which.
            read: answers queries from the target's cache.
        """
        layer = self.layer
        normed = layer.input_layernorm(embedded)
        state = embedded + layer.self_attn(normed, positions, 0, attend)
        if self.config.reads_cache:
            state = state + self._read(state, positions, read)
        return self.norm(layer.through_network(state))

    def _read(self, state: Tensor, positions: Tensor, read: CacheRule) -> Tensor:
        """Attention over the target's cache, whose keys are rotated already."""
        sizes = self.config.sizes
        query = self.cross_q_proj(self.cross_layernorm(state))
        query = query.unflatten(-1, (-1, sizes.head_dim)).transpose(-2, -3)
        mixed = read(layers.rotated(query, positions, sizes.rope_theta))
        return self.cross_o_proj(mixed.transpose(-2, -3).flatten(-2))

    def keys_and_values(
        self, embedded: Float[Tensor, "... rows dim"], positions: Int[Tensor, "... rows"]
    ) -> Float[Tensor, "2 ... kv_heads rows head_dim"]:
        """Keys and values of the layer for rows that nobody runs."""
        sizes, attention = self.config.sizes, self.layer.self_attn
        rows = self.layer.input_layernorm(embedded)
        keys, values = (
            each(rows).unflatten(-1, (-1, sizes.head_dim)).transpose(-2, -3)
            for each in (attention.k_proj, attention.v_proj)
        )
        return torch.stack([layers.rotated(keys, positions, sizes.rope_theta), values])

    def start(self) -> "LongspecText":
        """A text of which it has read nothing yet."""
        return LongspecText(self)


class LongspecText:
    """One text of a LongSpec head: keys and values of the window, then those of what is drafted.

    Args:
        head: whose they are.

    Attributes:
        length: tokens of the text that it has taken in.
        text: keys and values of the newest of them [2 kv_heads rows head_dim], fewer than the
            window holds, as the row that drafts is one of it.
        drafted: likewise, of the root and of the nodes behind it.
    """

    def __init__(self, head: LongspecHead) -> None:
        sizes = head.config.sizes
        self.head, self.length = head, 0
        self.text = head.norm.weight.new_empty(2, sizes.num_kv_heads, 0, sizes.head_dim)
        self.drafted = self.text
        self.read: CacheRule = torch.zeros_like

    def take(self, embedded: Float[Tensor, "rows dim"], count: int) -> None:
        """Take in ``count`` tokens of the text, of the newest of which these are the rows."""
        self.length += count
        positions = torch.arange(self.length - len(embedded), self.length, device=embedded.device)
        new = torch.cat([self.text, self.head.keys_and_values(embedded, positions)], dim=2)
        self.text = new[:, :, max(0, new.shape[2] - self.head.config.window + 1) :]
        self.drop()

    def drop(self) -> None:
        """Forget what was drafted."""
        self.drafted = self.text[:, :, :0]

    def read_from(
        self,
        keys: Float[Tensor, "kv_heads places dim"],
        values: Float[Tensor, "kv_heads places dim"],
    ) -> None:
        """Let nodes attend to the target's cache as it is now."""
        self.read = reading(keys.to(self.text.dtype), values.to(self.text.dtype))

    def run(
        self,
        embedded: Float[Tensor, "rows dim"],
        depths: Int[Tensor, " rows"],
        ancestors: Bool[Tensor, "rows nodes"],
    ) -> Float[Tensor, "rows dim"]:
        """The states of new nodes that the output head reads; the root has depth 0.

        Args:
            ancestors: which nodes so far, themselves included, each of them sees.
        """
        newest = torch.arange(self.length - self.text.shape[2], self.length, device=depths.device)
        positions = self.length + depths
        near = positions[:, None] - newest < self.head.config.window
        seen = torch.cat([near, ancestors], dim=-1)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            self.drafted = torch.cat([self.drafted, torch.stack([key, value])], dim=2)
            keys, values = torch.cat([self.text, self.drafted], dim=2)
            return layers.attended(query, keys, values, seen)

        return self.head(embedded, positions, attend, self.read)


def reading(
    keys: Float[Tensor, "kv_heads places dim"], values: Float[Tensor, "kv_heads places dim"]
) -> CacheRule:
    """Attention over all places of a cache; heads that share keys are one product."""

    def read(query: Float[Tensor, "heads rows dim"]) -> Float[Tensor, "heads rows dim"]:
        shared = query.unflatten(0, (len(keys), -1))
        mixed = functional.scaled_dot_product_attention(
            shared.flatten(1, 2)[None], keys[None], values[None]
        )
        return mixed[0].unflatten(1, shared.shape[1:3]).flatten(0, 1)

    return read
