"""The fast path: Llama-shaped models run with few, large operations and no more work than a small tree needs."""

import copy
import os
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Num
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from draftwood.models.base import Keep, Output, Run
from draftwood.models.cache import CachePool, LayerShape
from draftwood.models.compiled import Steps, compiled_steps
from draftwood.models.decoder import Decoder, Norm, read_decoder, why_not_lean
from draftwood.models.linears import LEAST_ROWS, Kind, Linear, best_kind, require_int8
from draftwood.models.session import Part, PooledSession, parts_of, require_layers_to_skip
from draftwood.models.steps import normed
from draftwood.models.support import context_length, end_tokens


class LeanModel:
    """A Llama-shaped model (Llama, Mistral, Qwen2, Qwen3, StableLM) behind the ``Model`` protocol.

    The same weights and answers as ``TransformersModel``, with far less work around the matrix products: neighbouring
    projections are one product, weights are laid out for the CPU once, what lies between two products is one kernel,
    heads that share keys are attended to together, and rows of different sequences stand below each other without
    padding. What is added up (the residual stream, norms, rotary embedding) is kept in float32.

    Args:
        hf_model: the model, in eval mode; it is not changed. Some of its weights stay shared.
        int8: multiply in 8-bit integers; each row's product is then independent of the rows beside it.
        compile: use compiled kernels between the products where that can be done; see ``models.compiled``. None does
            unless ``$DRAFTWOOD_COMPILE`` is 0.

    Raises:
        ValueError: for architectures of another shape, and for int8 where the device has no fast 8-bit products.
    """

    def __init__(self, hf_model: PreTrainedModel, int8: bool = False, compile: bool | None = None) -> None:
        reason = why_not_lean(hf_model)
        if reason is not None:
            raise ValueError(f"the lean path cannot run this model: {reason}; use TransformersModel")
        if int8:
            require_int8(hf_model.device)
        kind: Kind = "int8" if int8 else best_kind(hf_model.device, hf_model.dtype)
        self.config: Any = hf_model.config
        self.decoder: Decoder = read_decoder(hf_model, kind)
        self.sizes = self.decoder.sizes
        wanted = os.environ.get("DRAFTWOOD_COMPILE") != "0" if compile is None else compile
        usable = wanted and hf_model.device.type == "cpu"
        self.steps: Steps = (compiled_steps(self.sizes) if usable else None) or Steps.eager(self.sizes)
        self.dtype, self.device = hf_model.dtype, hf_model.device
        self.end_tokens = end_tokens(hf_model)
        shape = (self.sizes.key_value_heads, self.sizes.head_dim)
        self.pool = CachePool([LayerShape(shape, shape)] * len(self.decoder.layers), self.dtype, self.device)
        self.kept = tuple(range(len(self.decoder.layers)))
        self.windows = {layer.window for layer in self.decoder.layers}
        self._without: dict[frozenset[int], LeanModel] = {}

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def context_length(self) -> int | None:
        return context_length(self.config)

    @property
    def layers(self) -> int:
        return len(self.kept)

    def start(self) -> PooledSession:
        return PooledSession(self)

    def forward(self, runs: Sequence[Run], hidden: Sequence[int] = ()) -> list[Output]:
        return self.run(parts_of(runs, self.pool), hidden=hidden)

    def without(self, layers: frozenset[int]) -> "LeanModel":
        """A model that shares these weights and this cache but leaves out some decoder layers."""
        if layers not in self._without:
            require_layers_to_skip(layers, len(self.decoder.layers))
            smaller = copy.copy(self)
            smaller.kept = tuple(index for index in self.kept if index not in layers)
            self._without[layers] = smaller
        return self._without[layers]

    @torch.no_grad()
    def run(self, parts: Sequence[Part], keep: Keep = "all", hidden: Sequence[int] = ()) -> list[Output]:
        """One run over the parts, whose rows stand one after the other."""
        counts = [part.place.count for part in parts]
        if self.sizes.kind != "plain" and sum(counts) < LEAST_ROWS:
            parts = [*parts[:-1], parts[-1].padded(LEAST_ROWS - sum(counts))]
        self.pool.reserve(max(part.place.start + part.place.count for part in parts))
        tokens = torch.cat([part.tokens for part in parts]).to(self.device, non_blocking=True)
        positions = torch.cat([part.positions for part in parts]).to(self.device, non_blocking=True)
        attention = _Attention(self, parts, *self._rotation(positions))
        stream = functional.embedding(tokens, self.decoder.embedding).float()
        added = self._nothing(len(stream))  # what the last product adds to the stream
        states: dict[int, Tensor] = {}
        for index in self.kept:
            layer = self.decoder.layers[index]
            stream, encoded, scale = self._add_norm(stream, added, layer.attention_norm)
            if index in hidden:
                states[index] = stream.to(self.dtype)
            encoded, scale = attention(index, encoded, scale)
            added = (layer.output(encoded), scale, layer.output.bias)
            stream, encoded, scale = self._add_norm(stream, added, layer.network_norm)
            encoded, scale = self.steps.gate(layer.gate_up(encoded), scale, layer.gate_up.bias)
            added = (layer.down(encoded), scale, layer.down.bias)
        stream, encoded, scale = self._add_norm(stream, added, self.decoder.norm)
        if len(self.decoder.layers) in hidden:  # as Transformers has it: the last hidden state is behind the norm
            norm, sizes = self.decoder.norm, self.sizes
            rows = normed(stream, norm.weight, sizes.epsilon, sizes.centred) + norm.bias
            states[len(self.decoder.layers)] = rows.to(self.dtype)
        return self._outputs(counts, encoded, scale, states, keep, hidden)

    def _add_norm(
        self, stream: Tensor, added: tuple[Tensor, Tensor, Tensor], norm: Norm
    ) -> tuple[Float[Tensor, "rows hidden"], Num[Tensor, "rows hidden"], Float[Tensor, "rows one"]]:
        return self.steps.add_norm(stream, *added, norm.weight, norm.bias)

    def _nothing(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        first: Linear = self.decoder.layers[0].down
        dtype = torch.float32 if self.sizes.kind == "int8" else self.dtype
        scale = torch.ones(rows, 1, device=self.device)
        return (
            torch.zeros(rows, self.sizes.hidden, dtype=dtype, device=self.device),
            scale,
            torch.zeros_like(first.bias),
        )

    def _rotation(self, positions: Tensor) -> tuple[Float[Tensor, "rows pairs"], Float[Tensor, "rows pairs"]]:
        angles = positions[:, None] * self.decoder.frequencies
        return angles.cos() * self.decoder.rotary_scale, angles.sin() * self.decoder.rotary_scale

    def _outputs(
        self,
        counts: list[int],
        encoded: Num[Tensor, "rows hidden"],
        scale: Float[Tensor, "rows one"],
        states: dict[int, Tensor],
        keep: Keep,
        hidden: Sequence[int],
    ) -> list[Output]:
        if keep == "last":
            last = torch.tensor(counts, device=self.device).cumsum(0) - 1
            encoded, scale = encoded[last], scale[last]
        logits = self.decoder.head(encoded)
        if self.sizes.kind == "int8":
            logits = logits.mul_(scale)
        rows = logits.split([1] * len(counts)) if keep == "last" else logits[: sum(counts)].split(counts)
        pieces = {layer: states[layer][: sum(counts)].split(counts) for layer in hidden}
        return [Output(row, {layer: pieces[layer][i] for layer in hidden}) for i, row in enumerate(rows)]


class _Attention:
    """Attention of one run: rotation, masks and places in the cache are prepared once for all layers."""

    def __init__(self, model: LeanModel, parts: Sequence[Part], cosines: Tensor, sines: Tensor) -> None:
        self.model = model
        self.spans = [_Span(model, part) for part in parts]
        counts = [part.place.count for part in parts]
        self.counts = counts
        self.rotations = list(zip(cosines.split(counts), sines.split(counts), strict=True))

    def __call__(
        self, index: int, encoded: Num[Tensor, "rows hidden"], scale: Float[Tensor, "rows one"]
    ) -> tuple[Num[Tensor, "rows inputs"], Float[Tensor, "rows one"]]:
        layer = self.model.decoder.layers[index]
        joined = layer.query_key_value
        norms = (layer.query_norm.weight, layer.key_norm.weight)
        pairs = zip(joined(encoded).split(self.counts), scale.split(self.counts), strict=True)
        outputs = []
        for span, pair, rotation in zip(self.spans, pairs, self.rotations, strict=True):
            query = self.model.steps.heads(*pair, joined.bias, *rotation, *norms, *span.places[index])
            outputs.append(span.attention(query, *span.visible[index], span.masks[layer.window]))
        if len(outputs) == 1:
            return outputs[0]
        return torch.cat([encoded for encoded, _ in outputs]), torch.cat([scale for _, scale in outputs])


class _Span:
    """One sequence's keys and values in the cache, old and new, and what its rows see of them."""

    def __init__(self, model: LeanModel, part: Part) -> None:
        slot, start, end = part.place.slot, part.place.start, part.place.start + part.place.count
        few = part.place.count <= FEW_ROWS
        self.attention = model.steps.attention if few else model.steps.attention_of_many_rows
        self.places = model.pool.places(slot, start, end)
        self.visible = model.pool.places(slot, 0, end)
        self.masks = {window: _mask(part, window, model.device) for window in model.windows}


FEW_ROWS = 64
"""Most rows for which attention is written out as sums; a prompt has more."""


def _mask(part: Part, window: int | None, device: torch.device) -> Float[Tensor, "rows width"]:
    """Zero where a row sees, else minus infinity."""
    sees = part.within(window).to(device, non_blocking=True)
    return torch.zeros(sees.shape, device=device).masked_fill_(~sees, -torch.inf)
