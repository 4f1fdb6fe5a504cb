"""Llama-shaped models run with few, large operations of PyTorch, on any device."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from draftwood.interfaces.model import Keep, Layers, Output
from draftwood.models.decoder import Norm, Projection, read_decoder
from draftwood.models.decoder_model import DecoderModel, outputs
from draftwood.models.ends import LeanEnds
from draftwood.models.graphs import MOST_ROWS, Attend, CudaRecord, Decoded, Graphs
from draftwood.models.session import PackedInput

LEAST_ROWS = 4
"""oneDNN multiplies four rows faster than one, two or three."""

_TYPICAL_ROWS = 64  # a hint to oneDNN's choice of layout; 5 % faster than 8 even for small trees


class LeanModel(DecoderModel):
    """Runs on CUDA devices, and on CPUs without a C++ compiler; ``NativeModel`` is faster on CPUs.

    Neighbouring projections are one product, weights are laid out for the CPU once, heads that
    share keys are attended to together, and rows of different sequences are below each other
    without padding. On CUDA devices small forward passes of one sequence are recorded as graphs and
    played back (``draftwood.models.graphs``); prompts and passes over several sequences are not.

    Args:
        hf_model: a Llama-shaped model.

    Attributes:
        graphs: the recorded forward passes; None where there are to be none.

    Raises:
        ValueError: for architectures of another shape; the message says why.
    """

    def __init__(self, hf_model: PreTrainedModel) -> None:
        self.decoder = read_decoder(hf_model)
        self.embedding = Projection(self.decoder.embedding, None).floats
        super().__init__(hf_model, self.decoder, cache=hf_model.dtype)
        prepacked = _can_prepack(self.device, self.dtype)
        self.products = [
            _Products(
                *(_product(part, prepacked) for part in (mixed, layer.output, both, layer.down))
            )
            for layer in self.decoder.layers
            for mixed in [Projection.joined([layer.query, layer.key, layer.value])]
            for both in [Projection.joined([layer.gate, layer.up])]
        ]
        self.lm_head = _product(self.decoder.lm_head, prepacked)
        self.padded = prepacked
        self.graphs = Graphs(CudaRecord(self.device)) if self.device.type == "cuda" else None

    @property
    def ends(self) -> LeanEnds:
        return LeanEnds(self)

    @torch.no_grad()
    def compute(
        self, parts: Sequence[PackedInput], keep: Keep, hidden: Sequence[int]
    ) -> list[Output]:
        counts = [part.place.count for part in parts]
        rows, states = self._recorded(parts, tuple(hidden)) or self._at_once(parts, tuple(hidden))
        rows = (
            rows[: sum(counts)]
            if keep == "all"
            else torch.stack([rows[end - 1] for end in accumulate(counts)])
        )
        states = {layer: state[: sum(counts)] for layer, state in states.items()}
        return outputs(self.lm_head(rows), states, counts, keep)

    def _recorded(self, parts: Sequence[PackedInput], hidden: tuple[int, ...]) -> Decoded | None:
        """The forward pass played back; None for what is not recorded."""
        if self.graphs is None or len(parts) > 1 or len(parts[0].tree_positions) > MOST_ROWS:
            return None
        return self.graphs.run(self, self._decode, parts[0], hidden)

    def _at_once(self, parts: Sequence[PackedInput], hidden: tuple[int, ...]) -> Decoded:
        """The forward pass, operation by operation, in just the shapes it has."""
        missing = LEAST_ROWS - sum(part.place.count for part in parts)
        if self.padded and missing > 0:
            parts = [*parts[:-1], parts[-1].padded(missing)]
        self.pool.reserve(max(part.place.start + part.place.count for part in parts))
        tokens = torch.cat([part.tokens for part in parts]).to(self.device, non_blocking=True)
        positions = torch.cat([part.positions for part in parts]).to(self.device, non_blocking=True)
        return self._decode(tokens, positions, _Attention(self, parts), parts[0].layers, hidden)

    def _decode(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        layers: Layers,
        hidden: tuple[int, ...],
    ) -> Decoded:
        rotation = self.decoder.rotary(positions)
        stream = functional.embedding(tokens, self.embedding).float()
        states: dict[int, Tensor] = {}
        for index, (layer, products) in enumerate(
            zip(self.decoder.layers, self.products, strict=True)
        ):
            if index in hidden:
                states[index] = stream.to(self.dtype)
            if index not in layers.without_attention:
                rows = self.normed(stream, layer.attention_norm)
                stream = stream + products.output(self._attended(index, rows, rotation, attend))
            if index not in layers.without_mlp:
                gate, up = products.gate_up(self.normed(stream, layer.mlp_norm)).chunk(2, dim=-1)
                stream = stream + products.down(functional.silu(gate) * up)
        rows = self.normed(stream, self.decoder.norm)
        if self.depth in hidden:  # as Transformers has it: the last hidden state is after the norm
            states[self.depth] = rows.to(self.dtype)
        return rows, states

    def _attended(
        self,
        index: int,
        rows: Float[Tensor, "rows hidden"],
        rotation: tuple[Tensor, Tensor],
        attend: Attend,
    ) -> Float[Tensor, "rows inputs"]:
        layer, sizes = self.decoder.layers[index], self.sizes
        mixed = self.products[index].query_key_value(rows).unflatten(-1, (-1, sizes.head_dim))
        query, key, value = mixed.split(
            [sizes.heads, sizes.num_kv_heads, sizes.num_kv_heads], dim=1
        )
        query = (
            query if layer.query_norm is None else normed(query, layer.query_norm, sizes.epsilon)
        )
        key = key if layer.key_norm is None else normed(key, layer.key_norm, sizes.epsilon)
        query, key = (_rotated(part, *rotation, sizes.rotary_dim) for part in (query, key))
        query, key, value = (part.to(self.dtype) for part in (query, key, value))
        # The heads that share a key are side by side, as if they were more rows.
        group = sizes.heads // sizes.num_kv_heads
        stacked = query.unflatten(1, (-1, group)).transpose(0, 1).flatten(1, 2)
        attended = attend(index, layer.window, stacked, key, value)
        return attended.unflatten(1, (-1, group)).transpose(0, 1).flatten(1)

    def normed(self, rows: Tensor, norm: Norm) -> Tensor:
        """The rows through one of its norms."""
        return normed(rows, norm, self.sizes.epsilon, self.sizes.is_layer_norm)


class _Product:
    """PyTorch's own linear layer; rows come and go in float32."""

    def __init__(self, part: Projection) -> None:
        self.weight, self.bias = part.floats, part.bias

    def __call__(self, rows: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        return functional.linear(rows.to(self.weight.dtype), self.weight, self.bias).float()


class _Prepacked:
    """oneDNN with weights laid out once in the order in which the CPU reads them.

    PyTorch's own linear layer lays bfloat16 weights out again for every call, which for few rows
    costs more than the product.
    """

    def __init__(self, part: Projection) -> None:
        self.dtype, self.bias = part.floats.dtype, part.bias
        self.weight = torch.ops.mkldnn._reorder_linear_weight(part.floats, _TYPICAL_ROWS)
        self.run = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, rows: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        return self.run(rows.to(self.dtype), self.weight, self.bias, "none", [], "").float()


_Linear = _Product | _Prepacked


@dataclass(frozen=True, eq=False)
class _Products:
    """The products of one layer."""

    query_key_value: _Linear
    output: _Linear
    gate_up: _Linear
    down: _Linear


def _product(part: Projection, prepacked: bool) -> _Linear:
    return _Prepacked(part) if prepacked else _Product(part)


def _can_prepack(device: torch.device, dtype: torch.dtype) -> bool:
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    supported = {
        torch.float32: lambda: True,
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return dtype in supported and supported[dtype]()


class _Attention:
    """Attention of one forward pass: masks and cache places are prepared once for all layers."""

    def __init__(self, model: LeanModel, parts: Sequence[PackedInput]) -> None:
        self.group = model.sizes.heads // model.sizes.num_kv_heads
        self.counts = [part.place.count for part in parts]
        self.spans = [_Span(model, part, self.group) for part in parts]

    def __call__(
        self,
        index: int,
        window: int | None,
        query: Float[Tensor, "shared stacked dim"],
        key: Float[Tensor, "rows shared dim"],
        value: Float[Tensor, "rows shared dim"],
    ) -> Float[Tensor, "shared stacked dim"]:
        queries = query.split([self.group * count for count in self.counts], dim=1)
        pieces = zip(
            self.spans, queries, key.split(self.counts), value.split(self.counts), strict=True
        )
        attended = [span(index, window, *piece) for span, *piece in pieces]
        return attended[0] if len(attended) == 1 else torch.cat(attended, dim=1)


class _Span:
    """One sequence's keys and values in the cache, old and new, and what its rows see of them."""

    def __init__(self, model: LeanModel, part: PackedInput, group: int) -> None:
        slot, start, end = part.place.slot, part.place.start, part.place.start + part.place.count
        self.places, self.visible = (
            model.pool.places(slot, start, end),
            model.pool.places(slot, 0, end),
        )
        masks = {
            window: part.within(window).to(model.device, non_blocking=True)
            for window in model.windows
        }
        self.masks = {window: mask.repeat_interleave(group, 0) for window, mask in masks.items()}

    def __call__(
        self, index: int, window: int | None, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        for place, new in zip(self.places[index], (key, value), strict=True):
            place.copy_(new)
        keys, values = (part.transpose(0, 1)[None] for part in self.visible[index])
        return functional.scaled_dot_product_attention(
            query[None], keys, values, attn_mask=self.masks[window]
        )[0]


def normed(rows: Tensor, norm: Norm, epsilon: float, is_layer_norm: bool = False) -> Tensor:
    """RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467), or LayerNorm where centred."""
    if is_layer_norm:
        rows = rows - rows.mean(-1, keepdim=True)
    rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + epsilon) * norm.weight
    return rows if norm.bias is None else rows + norm.bias


def _rotated(heads: Tensor, cosines: Tensor, sines: Tensor, dim: int) -> Tensor:
    cosines, sines = cosines[:, None], sines[:, None]
    first, second, rest = heads.split([dim // 2, dim // 2, heads.shape[-1] - dim], dim=-1)
    return torch.cat(
        [first * cosines - second * sines, second * cosines + first * sines, rest], dim=-1
    )
