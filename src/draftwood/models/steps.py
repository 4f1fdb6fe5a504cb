"""What a Llama-shaped decoder does between its matrix products, as functions that can be compiled.

All weights are arguments, so one compiled function serves every layer. Everything is added up in float32.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Num
from torch import Tensor
from torch.nn import functional

from draftwood.models.linears import Kind, decode, encode


@dataclass(frozen=True)
class Sizes:
    """What the steps of a decoder depend on besides their arguments.

    Attributes:
        kind: of its linear layers.
        dtype: of encoded rows (unless 8-bit) and of the cache.
        centred: whether norms take off the mean (LayerNorm) or not (RMSNorm).
        head_norms: whether queries and keys are normed head by head.
        epsilon: of the norms.
    """

    kind: Kind
    dtype: torch.dtype
    hidden: int
    inner: int
    heads: int
    key_value_heads: int
    head_dim: int
    rotary_dim: int
    centred: bool
    head_norms: bool
    epsilon: float

    @property
    def mixed(self) -> int:
        """Outputs of the joined query, key and value projection."""
        return (self.heads + 2 * self.key_value_heads) * self.head_dim


Encoded = tuple[Num[Tensor, "rows inputs"], Float[Tensor, "rows one"]]


class AddNorm(torch.nn.Module):
    """Decode a product, add it to the residual stream, norm the stream and encode it for the next product."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(
        self,
        stream: Float[Tensor, "rows hidden"],
        products: Float[Tensor, "rows hidden"],
        scale: Float[Tensor, "rows one"],
        bias: Tensor,
        weight: Float[Tensor, " hidden"],
        norm_bias: Float[Tensor, " hidden"],
    ) -> tuple[Float[Tensor, "rows hidden"], Num[Tensor, "rows hidden"], Float[Tensor, "rows one"]]:
        stream = stream + decode(self.sizes.kind, products, scale, bias)
        rows = normed(stream, weight, self.sizes.epsilon, self.sizes.centred)
        rows = rows + norm_bias if self.sizes.centred else rows
        return (stream, *encode(self.sizes.kind, self.sizes.dtype, rows))


class Heads(torch.nn.Module):
    """Decode queries, keys and values, norm and rotate them, and store keys and values."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(
        self,
        products: Float[Tensor, "rows mixed"],
        scale: Float[Tensor, "rows one"],
        bias: Tensor,
        cosines: Float[Tensor, "rows pairs"],
        sines: Float[Tensor, "rows pairs"],
        query_weight: Float[Tensor, " norm"],
        key_weight: Float[Tensor, " norm"],
        key_place: Float[Tensor, "rows shared dim"],
        value_place: Float[Tensor, "rows shared dim"],
    ) -> Float[Tensor, "rows shared group dim"]:
        """Queries, scaled as attention wants them and sorted by the heads that share a key."""
        sizes = self.sizes
        mixed = decode(sizes.kind, products, scale, bias).unflatten(-1, (-1, sizes.head_dim))
        query, key, value = mixed.split([sizes.heads, sizes.key_value_heads, sizes.key_value_heads], dim=1)
        if sizes.head_norms:
            query = normed(query, query_weight, sizes.epsilon, centred=False)
            key = normed(key, key_weight, sizes.epsilon, centred=False)
        key_place.copy_(_rotated(key, cosines, sines, sizes.rotary_dim))
        value_place.copy_(value)
        query = _rotated(query, cosines, sines, sizes.rotary_dim) * sizes.head_dim**-0.5
        return query.unflatten(1, (sizes.key_value_heads, -1))


class Attention(torch.nn.Module):
    """Attend and encode.

    Written out as sums, which for the few rows of a draft tree beats kernels made for many. Sums run in the order of
    the cache and places that a row does not see add nothing, so rows beside it or behind it do not change its result;
    only the sum that softmax divides by is added up in another order, and therefore in float64.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(
        self,
        query: Float[Tensor, "rows shared group dim"],
        keys: Float[Tensor, "width shared dim"],
        values: Float[Tensor, "width shared dim"],
        mask: Float[Tensor, "rows width"],
    ) -> Encoded:
        """The mask is added to the scores."""
        keys, values = (part.float().transpose(0, 1)[:, None] for part in (keys, values))
        scores = (query[..., None, :] * keys).sum(-1) + mask[:, None, None]
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        attended = (weights[..., None] * values).sum(-2) / weights.double().sum(-1, keepdim=True).float()
        return encode(self.sizes.kind, self.sizes.dtype, attended.flatten(1))


class LibraryAttention(torch.nn.Module):
    """The same with a kernel of PyTorch's, for many rows or where nothing can be compiled."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(
        self,
        query: Float[Tensor, "rows shared group dim"],
        keys: Float[Tensor, "width shared dim"],
        values: Float[Tensor, "width shared dim"],
        mask: Float[Tensor, "rows width"],
    ) -> Encoded:
        sizes, group = self.sizes, query.shape[2]
        # The heads that share a key stand side by side, as if they were more rows.
        rows = query.to(sizes.dtype).transpose(0, 1).flatten(1, 2)[None]
        keys, values = keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
        mask = mask.to(sizes.dtype).repeat_interleave(group, 0)[None, None]
        attended = functional.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=1.0)
        attended = attended[0].unflatten(1, (-1, group)).transpose(0, 1).flatten(1)
        return encode(sizes.kind, sizes.dtype, attended.float())


class Gate(torch.nn.Module):
    """Decode gate and up projections, multiply them as SwiGLU (Shazeer 2020, arXiv:2002.05202) does, and encode."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, products: Float[Tensor, "rows twice"], scale: Float[Tensor, "rows one"], bias: Tensor) -> Encoded:
        gate, up = decode(self.sizes.kind, products, scale, bias).chunk(2, dim=-1)
        return encode(self.sizes.kind, self.sizes.dtype, functional.silu(gate) * up)


def normed(rows: Tensor, weight: Tensor, epsilon: float, centred: bool) -> Tensor:
    """RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467), or LayerNorm without its bias where centred."""
    if centred:
        rows = rows - rows.mean(-1, keepdim=True)
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + epsilon) * weight


def _rotated(heads: Tensor, cosines: Tensor, sines: Tensor, dim: int) -> Tensor:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864) of the first ``dim`` dimensions."""
    cosines, sines = cosines[:, None], sines[:, None]
    first, second, rest = heads.split([dim // 2, dim // 2, heads.shape[-1] - dim], dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines, rest], dim=-1)
