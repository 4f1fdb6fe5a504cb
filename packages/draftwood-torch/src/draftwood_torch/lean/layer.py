"""A Llama layer over the nodes of a draft tree. What a Llama lacks of it, other families have."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from draftwood.models.decoder import Decoder, Expert, Norm
from draftwood.models.model import Layers
from draftwood_torch.lean.linear import ACTIVATIONS, Network, ToLinear, joined
from draftwood_torch.lean.rows import normed, rotated
from draftwood_torch.models.pool import CachePool
from draftwood_torch.models.tensor_input import TensorInput

Attend = Callable[[int, int | None, Tensor, Tensor, Tensor], Float[Tensor, "shared stacked dim"]]
"""Stores a layer's new keys and values [rows shared dim]; mixes those that queries see."""
Rotations = Sequence[Sequence[Tensor]]  # cosines and sines [rows 2*pairs], by the decoder's tables


class LlamaLayer:
    """Attention and an MLP, each behind a norm and added to the residual stream in float32."""

    def __init__(self, decoder: Decoder, index: int, mlp: Network, linear: ToLinear) -> None:
        self.index, self.layer, self.mlp = index, decoder.layers[index], mlp
        self.sizes, self.scales = decoder.sizes, decoder.scales
        parts = [self.layer.query, self.layer.key, self.layer.value]
        self.query_key_value = linear(joined(parts))
        self.output = linear(self.layer.output)

    def __call__(
        self, stream: Tensor, rotations: Rotations, attend: Attend, layers: Layers
    ) -> Float[Tensor, "rows hidden"]:
        layer, sizes, before = self.layer, self.sizes, stream
        if self.index not in layers.without_attention:
            rows = self.attention(normed(stream, layer.attention_norm, sizes), rotations, attend)
            stream = self.added(stream, normed(rows, layer.after_attention_norm, sizes))
        if self.index not in layers.without_mlp:
            rows = before if sizes.is_parallel else stream
            rows = self.mlp(normed(rows, layer.mlp_norm, sizes))
            stream = self.added(stream, normed(rows, layer.after_mlp_norm, sizes))
        return stream

    def attention(self, rows: Tensor, rotations: Rotations, attend: Attend) -> Tensor:
        """Let each node read the committed text, its ancestors and itself."""
        layer, sizes = self.layer, self.sizes
        width = (sizes.heads + sizes.num_kv_heads) * sizes.head_dim
        turned, value = self.query_key_value(rows).tensor_split([width], dim=1)
        widths = [sizes.heads, sizes.num_kv_heads]
        if layer.query_norm is None and layer.key_norm is None:
            turned = self.heads(turned, None)
        else:
            query, key = turned.split([count * sizes.head_dim for count in widths], dim=1)
            parts = self.heads(query, layer.query_norm), self.heads(key, layer.key_norm)
            turned = torch.cat(parts, dim=1)
        if layer.rotary is not None:
            turned = rotated(turned, *rotations[layer.rotary])
        query, key = turned.split(widths, dim=1)
        if self.scales.attention is not None:  # in the place of one by the root of head_dim
            query = query * (self.scales.attention * sizes.head_dim**0.5)
        # heads that share a key lie side by side, as if they were more rows
        group = sizes.heads // sizes.num_kv_heads
        query = query.unflatten(1, (-1, group)).transpose(0, 1).flatten(1, 2)
        rows = attend(self.index, layer.window, query, key, self.heads(value, None))
        return self.output(rows.unflatten(1, (-1, group)).transpose(0, 1).flatten(1))

    def heads(self, rows: Tensor, norm: Norm | None) -> Float[Tensor, "rows heads dim"]:
        """Split queries or keys into heads; some families norm these, or all of them together."""
        together = norm if self.sizes.norms_whole_vectors else None
        heads = normed(rows, together, self.sizes).unflatten(-1, (-1, self.sizes.head_dim))
        return normed(heads, None if together else norm, self.sizes)

    def added(self, stream: Tensor, rows: Tensor) -> Float[Tensor, "rows hidden"]:
        return torch.add(stream, rows, alpha=self.scales.residual)


class GatedMLP:
    """SwiGLU (Shazeer 2020, arXiv:2002.05202): down(silu(gate(rows)) * up(rows))."""

    def __init__(self, network: Expert, activation: str, linear: ToLinear) -> None:
        assert network.up is not None
        self.gate_up = linear(joined([network.gate, network.up]))
        self.down, self.activation = linear(network.down), ACTIVATIONS[activation]

    def __call__(self, rows: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows hidden"]:
        gate, up = self.gate_up(rows).float().chunk(2, dim=-1)
        return self.down(self.activation(gate) * up)


class TreeAttention:
    """Attention of one sequence's nodes over its cache, each within what its mask shows."""

    def __init__(
        self, pool: CachePool, part: TensorInput, windows: Sequence[int | None], group: int
    ) -> None:
        slot, start, end = part.place.slot, part.place.start, part.place.start + part.place.count
        self.new, self.all = pool.places(slot, start, end), pool.places(slot, 0, end)
        masks = {each: part.within(each).to(pool.device, non_blocking=True) for each in windows}
        self.masks = {each: mask.repeat_interleave(group, 0) for each, mask in masks.items()}

    def __call__(
        self, index: int, window: int | None, query: Tensor, key: Tensor, value: Tensor
    ) -> Float[Tensor, "shared stacked dim"]:
        keys, values = self.stored(index, key, value)
        batch = [each[None] for each in (query.to(keys.dtype), keys, values)]
        return functional.scaled_dot_product_attention(*batch, attn_mask=self.masks[window])[0]

    def stored(self, index: int, *new: Tensor) -> Sequence[Float[Tensor, "shared width dim"]]:
        """Write new keys and values to the cache; those of all places."""
        for place, rows in zip(self.new[index], new, strict=True):
            place.copy_(rows)
        return [part.transpose(0, 1) for part in self.all[index]]
