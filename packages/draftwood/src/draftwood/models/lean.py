"""Decoders run with few, large operations of PyTorch, on any device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from draftwood.models.cache import CachePool, LayerShape
from draftwood.models.decoder import Expert, Experts, Layer, Norm, Projection
from draftwood.models.decoder_model import DecoderModel, outputs, scored_attention
from draftwood.models.described import DescribedModel
from draftwood.models.ends import LeanEnds
from draftwood.models.families import Scales
from draftwood.models.graphs import MOST_ROWS, Attend, CudaRecord, Decoded, Graphs
from draftwood.models.model import Layers, Output
from draftwood.models.parts import PackedInput

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ACTIVATIONS = {
    "silu": functional.silu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}

LEAST_ROWS = 4
"""oneDNN multiplies four rows faster than one, two or three."""

_TYPICAL_ROWS = 64  # a hint to oneDNN's choice of layout; 5 % faster than 8 even for small trees


class LeanModel(DecoderModel[CachePool]):
    """Runs on CUDA devices, and on CPUs without a C++ compiler; ``NativeModel`` is faster on CPUs.

    Neighbouring projections are one product, weights are laid out for the CPU once, heads that
    share keys are attended to together, and rows of different sequences are below each other
    without padding. On CUDA devices small forward passes of one sequence are recorded as graphs and
    played back (``draftwood.models.graphs``); prompts and passes over several sequences are not.

    Args:
        hf_model: a model of one of the ``FAMILIES``.

    Attributes:
        graphs: the recorded forward passes; None where there are to be none.

    Raises:
        ValueError: for architectures of another shape; the message says why.
    """

    def __init__(self, hf_model: "PreTrainedModel") -> None:
        model = DescribedModel.of(hf_model)
        self.decoder = model.decoder
        self.embedding = Projection(self.decoder.embedding, None).floats
        sizes = self.decoder.sizes
        shape = (sizes.num_kv_heads, sizes.head_dim)
        layers = [LayerShape(shape, shape)] * len(self.decoder.layers)
        super().__init__(model, CachePool(layers, hf_model.dtype, hf_model.device))
        prepacked = _can_prepack(self.device, self.dtype)
        self.products = [
            _products(layer, self.sizes.activation, self.scales, prepacked)
            for layer in self.decoder.layers
        ]
        self.lm_head = _product(self.decoder.lm_head, prepacked)
        # attention itself divides scores by the root of a head's dimensions
        scale = self.scales.attention
        self.query_scale = 1.0 if scale is None else scale * self.sizes.head_dim**0.5
        self.padded = prepacked
        # which experts are run is known only when the rows are there; sinks come with experts
        fixed = all(layer.experts is None and layer.sinks is None for layer in self.decoder.layers)
        self.graphs = (
            Graphs(CudaRecord(self.device)) if fixed and self.device.type == "cuda" else None
        )

    @property
    def ends(self) -> LeanEnds:
        return LeanEnds(self)

    @torch.no_grad()
    def compute(self, parts: Sequence[PackedInput], hidden: Sequence[int]) -> list[Output]:
        counts = [part.place.count for part in parts]
        rows, states = self._recorded(parts, tuple(hidden)) or self._at_once(parts, tuple(hidden))
        rows = (
            rows[: sum(counts)]
            if all(part.keep == "all" for part in parts)
            else torch.cat(
                [
                    rows[end - part.wanted : end]
                    for part, end in zip(parts, accumulate(counts), strict=True)
                ]
            )
        )
        states = {layer: state[: sum(counts)] for layer, state in states.items()}
        if parts[0].layers.stop is not None:
            return outputs(rows.new_empty(0, self.vocab_size), states, parts)
        return outputs(self.bounded(self.lm_head(rows)), states, parts)

    def bounded(self, logits: Float[Tensor, "rows part"]) -> Float[Tensor, "rows part"]:
        """What the output head's products come to as logits."""
        scale, cap = self.scales.logits, self.scales.logit_cap
        logits = logits if scale == 1.0 else logits * scale
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _recorded(self, parts: Sequence[PackedInput], hidden: tuple[int, ...]) -> Decoded | None:
        """The forward pass played back; None for what is not recorded."""
        if self.graphs is None or len(parts) > 1 or len(parts[0].tree_positions) > MOST_ROWS:
            return None
        if parts[0].stream is not None or parts[0].layers.window is not None:
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
        attend, stopped = _Attention(self, parts), [part.stream for part in parts]
        stream = None
        if parts[0].layers.start:
            stream = torch.cat([states for states in stopped if states is not None])
        return self._decode(tokens, positions, attend, parts[0].layers, hidden, stream)

    def _decode(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        layers: Layers,
        hidden: tuple[int, ...],
        stream: Tensor | None = None,
    ) -> Decoded:
        rotations = [rotary(positions) for rotary in self.decoder.rotaries]
        stream = self._embedded(tokens) if stream is None else stream
        states: dict[int, Tensor] = {}
        for index in range(layers.start, self.depth if layers.stop is None else layers.stop):
            layer, products = self.decoder.layers[index], self.products[index]
            if index in hidden:
                states[index] = stream.to(self.dtype)
            before = stream
            if index not in layers.without_attention:
                rows = self.normed(stream, layer.attention_norm)
                rotation = None if layer.rotary is None else rotations[layer.rotary]
                attended = products.output(self._attended(index, rows, rotation, attend))
                stream = self._added(stream, attended, layer.after_attention_norm)
            if index not in layers.without_mlp:
                rows = self.normed(before if self.sizes.is_parallel else stream, layer.mlp_norm)
                stream = self._added(stream, products.network(rows), layer.after_mlp_norm)
        if layers.stop is not None:
            return stream, {**states, layers.stop: stream}
        rows = self.normed(stream, self.decoder.norm)
        if self.depth in hidden:  # as Transformers has it: the last hidden state is after the norm
            states[self.depth] = rows.to(self.dtype)
        return rows, states

    def _embedded(self, tokens: Tensor) -> Float[Tensor, "rows hidden"]:
        embedded, scale = self.decoder.embed(tokens), self.scales.inputs
        return (embedded if scale == 1.0 else embedded * scale).float()

    def _added(self, stream: Tensor, given: Tensor, norm: Norm | None) -> Tensor:
        """The stream with what attention or network gave."""
        given, scale = self.normed(given, norm), self.scales.residual
        return stream + (given if scale == 1.0 else given * scale)

    def _attended(
        self,
        index: int,
        rows: Float[Tensor, "rows hidden"],
        rotation: tuple[Tensor, Tensor] | None,
        attend: Attend,
    ) -> Float[Tensor, "rows inputs"]:
        layer, sizes = self.decoder.layers[index], self.sizes
        widths = [count * sizes.head_dim for count in (sizes.heads, *[sizes.num_kv_heads] * 2)]
        query, key, value = self.products[index].query_key_value(rows).split(widths, dim=1)
        query, key = self._heads(query, layer.query_norm), self._heads(key, layer.key_norm)
        value = value.unflatten(-1, (-1, sizes.head_dim))
        if rotation is not None:
            query, key = (_rotated(part, *rotation, sizes.rotary_dim) for part in (query, key))
        query = query if self.query_scale == 1.0 else query * self.query_scale
        query, key, value = (part.to(self.dtype) for part in (query, key, value))
        # The heads that share a key are side by side, as if they were more rows.
        group = sizes.heads // sizes.num_kv_heads
        stacked = query.unflatten(1, (-1, group)).transpose(0, 1).flatten(1, 2)
        attended = attend(index, layer.window, stacked, key, value)
        return attended.unflatten(1, (-1, group)).transpose(0, 1).flatten(1)

    def _heads(
        self, vectors: Float[Tensor, "rows outputs"], norm: Norm | None
    ) -> Float[Tensor, "rows heads dim"]:
        """Queries or keys of all heads, normed where the model does that, together or apart."""
        if self.sizes.norms_whole_vectors and norm is not None:
            vectors, norm = normed(vectors, norm, self.sizes.epsilon), None
        heads = vectors.unflatten(-1, (-1, self.sizes.head_dim))
        return heads if norm is None else normed(heads, norm, self.sizes.epsilon)

    def normed(self, rows: Tensor, norm: Norm | None) -> Tensor:
        """The rows through one of its norms, or as they are where it has none there."""
        if norm is None:
            return rows
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
class _Gated:
    """A gated network."""

    gate_up: _Linear
    down: _Linear
    activation: Callable[[Tensor], Tensor]
    scales: Scales

    def __call__(self, rows: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows hidden"]:
        gate, up = self.gate_up(rows).chunk(2, dim=-1)
        slope, limit, shift = (
            self.scales.gate_slope,
            self.scales.gate_limit,
            self.scales.gated_shift,
        )
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        gate = self.activation(gate) if slope == 1.0 else self.activation(gate * slope) / slope
        return self.down(gate * (up if shift == 0.0 else up + shift))


@dataclass(frozen=True, eq=False)
class _Mixture:
    """Several, of which only those are run that a row chose."""

    experts: Experts
    networks: list[_Gated]

    def __call__(self, rows: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows hidden"]:
        shares, chosen = self.experts.choose(rows)
        mixed = torch.zeros_like(rows)
        for expert in chosen.unique().tolist():
            own, place = torch.where(chosen == expert)
            mixed[own] += self.networks[expert](rows[own]) * shares[own, place, None]
        return mixed


@dataclass(frozen=True, eq=False)
class _Products:
    """The products of one layer."""

    query_key_value: _Linear
    output: _Linear
    network: _Gated | _Mixture


def _products(layer: Layer, activation: str, scales: Scales, prepacked: bool) -> _Products:
    def gated(network: Layer | Expert) -> _Gated:
        gate, up, down = network.gate, network.up, network.down
        assert gate is not None
        assert up is not None
        assert down is not None
        return _Gated(
            _product(Projection.joined([gate, up]), prepacked),
            _product(down, prepacked),
            _ACTIVATIONS[activation],
            scales,
        )

    experts = layer.experts
    return _Products(
        _product(Projection.joined([layer.query, layer.key, layer.value]), prepacked),
        _product(layer.output, prepacked),
        gated(layer)
        if experts is None
        else _Mixture(experts, [gated(expert) for expert in experts.networks]),
    )


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
        self.cap, self.group = model.scales.score_cap, group
        self.sinks = [layer.sinks for layer in model.decoder.layers]

    def __call__(
        self, index: int, window: int | None, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        for place, new in zip(self.places[index], (key, value), strict=True):
            place.copy_(new)
        keys, values = (part.transpose(0, 1) for part in self.visible[index])
        sinks = self.sinks[index]
        if self.cap is not None or sinks is not None:
            bias = torch.where(self.masks[window], 0.0, -torch.inf)
            if sinks is not None:
                sinks = sinks.unflatten(0, (-1, self.group)).repeat(1, len(bias) // self.group)
            return scored_attention(query, keys, values, bias, self.cap, sinks)
        return functional.scaled_dot_product_attention(
            query[None], keys[None], values[None], attn_mask=self.masks[window]
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
