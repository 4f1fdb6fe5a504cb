"""Models of Llama's shape run with few, large operations of PyTorch, on any device."""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from draftwood.models.decoder_model import DecoderModel, outputs
from draftwood.models.model import Layers, ModelOutput
from draftwood.models.parts import PackedInput
from draftwood_torch.lean.attention import PackedAttention
from draftwood_torch.lean.embeddings_and_head import LeanEmbeddingsAndHead
from draftwood_torch.lean.graphs import MOST_ROWS, CudaRecord, Decoded, Graphs
from draftwood_torch.lean.layer import Attend, LlamaLayer
from draftwood_torch.lean.linear import LEAST_ROWS, can_prepack, to_linear
from draftwood_torch.lean.mlp import mlp_of
from draftwood_torch.lean.rows import rotations_at
from draftwood_torch.models.pool import CachePool, LayerShape
from draftwood_torch.models.reading import described
from draftwood_torch.models.tensor_input import TensorInput

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LeanModel(DecoderModel[CachePool]):
    """Runs on CUDA devices, and on CPUs without a C++ compiler; ``NativeModel`` is faster on CPUs.

    Neighbouring projections are one product, weights are laid out for the CPU once, heads that
    share keys are attended to together, and rows of different sequences are below each other
    without padding. On CUDA devices small forward passes of one sequence are recorded as graphs and
    played back (``models.torch.graphs``); prompts and passes over several sequences are not.

    Args:
        hf_model: a model of one of the ``FAMILIES``.

    Attributes:
        graphs: the recorded forward passes; None where there are to be none.

    Raises:
        ValueError: for architectures of another shape; the message says why.
    """

    def __init__(self, hf_model: "PreTrainedModel") -> None:
        model = described(hf_model)
        self.decoder = decoder = model.decoder
        if decoder.recurrences:
            raise ValueError("LeanModel runs no layers with running states; use HybridModel")
        shape = (decoder.sizes.num_kv_heads, decoder.sizes.head_dim)
        shapes = [LayerShape(shape, shape)] * len(decoder.layers)
        super().__init__(model, CachePool(shapes, hf_model.dtype, hf_model.device))
        self.device, self.dtype = hf_model.device, hf_model.dtype
        self.padded = can_prepack(self.device, self.dtype)
        linear = to_linear(prepacked=self.padded)
        self.decoder_layers = [
            LlamaLayer(decoder, index, mlp_of(decoder, index, linear), linear)
            for index in range(len(decoder.layers))
        ]
        self._embeddings_and_head = LeanEmbeddingsAndHead(decoder, self.dtype, self.device, linear)
        # which experts are run is known only when the rows are there; sinks come with experts, and
        # a graph does not know the positions that queries grow by
        fixed = all(layer.experts is None and layer.sinks is None for layer in decoder.layers)
        fixed = fixed and not decoder.scales.query_growth
        self.graphs = (
            Graphs(CudaRecord(self.device)) if fixed and self.device.type == "cuda" else None
        )

    @property
    def embeddings_and_head(self) -> LeanEmbeddingsAndHead:
        return self._embeddings_and_head

    @torch.no_grad()
    def compute(self, parts: Sequence[PackedInput], hidden: Sequence[int]) -> list[ModelOutput]:
        given = [TensorInput.of(part) for part in parts]
        counts = [part.place.count for part in given]
        rows, states = self._recorded(given, tuple(hidden)) or self._at_once(given, tuple(hidden))
        rows = (
            rows[: sum(counts)]
            if all(part.keep == "all" for part in given)
            else torch.cat(
                [
                    rows[end - part.wanted : end]
                    for part, end in zip(given, accumulate(counts), strict=True)
                ]
            )
        )
        states = {layer: state[: sum(counts)] for layer, state in states.items()}
        if given[0].layers.stop is not None:
            return outputs(rows.new_empty(0, self.vocab_size), states, given)
        return outputs(self.embeddings_and_head.logits(rows, normed=True), states, given)

    def _recorded(self, parts: Sequence[TensorInput], hidden: tuple[int, ...]) -> Decoded | None:
        """The forward pass played back; None for what is not recorded."""
        if self.graphs is None or len(parts) > 1 or len(parts[0].tree_positions) > MOST_ROWS:
            return None
        given = (parts[0].stream, parts[0].embeddings, parts[0].layers.window)
        if any(each is not None for each in given):
            return None
        return self.graphs.run(self, self._decode, parts[0], hidden)

    def _at_once(self, parts: Sequence[TensorInput], hidden: tuple[int, ...]) -> Decoded:
        """The forward pass, operation by operation, in just the shapes it has."""
        missing = LEAST_ROWS - sum(part.place.count for part in parts)
        if self.padded and missing > 0:
            parts = [*parts[:-1], parts[-1].padded(missing)]
        self.pool.cover([part.place for part in parts])
        tokens = torch.cat([part.tokens for part in parts]).to(self.device, non_blocking=True)
        positions = torch.cat([part.positions for part in parts]).to(self.device, non_blocking=True)
        attend = PackedAttention(self.decoder, self.pool, parts, self.windows)
        stream = None
        if parts[0].layers.start:
            stopped = [part.stream for part in parts]
            stream = torch.cat([states for states in stopped if states is not None])
        elif parts[0].embeddings is not None:  # a prompt, which is run by itself
            stream = self.embeddings_and_head.stream_of(parts[0].embeddings.to(self.device))
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
        rotations = [rotations_at(rotary, positions) for rotary in self.decoder.rotaries]
        stream = self.embeddings_and_head.stream(tokens) if stream is None else stream
        states: dict[int, Tensor] = {}
        for layer in self.decoder_layers[layers.start : layers.stop]:
            if layer.index in hidden:
                states[layer.index] = stream.to(self.dtype)
            stream = layer(stream, rotations, attend, layers)
        if layers.stop is not None:
            return stream, {**states, layers.stop: stream}
        rows = self.embeddings_and_head.normed(stream)
        if self.layers in hidden:  # as Transformers has it: the last hidden state is after the norm
            states[self.layers] = rows.to(self.dtype)
        return rows, states
