"""What every way to run a Llama-shaped decoder has in common."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from draftwood.models.base import Keep, Output, Run
from draftwood.models.cache import CachePool, LayerShape
from draftwood.models.decoder import Decoder
from draftwood.models.session import Part, PooledSession, parts_of, require_layers_to_skip
from draftwood.models.support import context_length, end_tokens


class DecoderModel(ABC):
    """A Llama-shaped model (Llama, Mistral, Qwen2, Qwen3, StableLM) behind the ``Model`` protocol.

    The same answers as ``TransformersModel``, with less work around the matrix products. What is added up (the residual
    stream, norms, rotary embedding) is kept in float32.

    Args:
        hf_model: the model, in eval mode; it is not changed.
        decoder: its parts.
        cache: type of the keys and values.
    """

    def __init__(self, hf_model: PreTrainedModel, decoder: Decoder, cache: torch.dtype) -> None:
        self.config: Any = hf_model.config
        self.sizes = decoder.sizes
        self.dtype, self.device = hf_model.dtype, hf_model.device
        self.end_tokens = end_tokens(hf_model)
        shape = (self.sizes.key_value_heads, self.sizes.head_dim)
        self.pool = CachePool([LayerShape(shape, shape)] * len(decoder.layers), cache, self.device)
        self.depth = len(decoder.layers)
        self.kept = tuple(range(self.depth))
        self.windows = list(dict.fromkeys(layer.window for layer in decoder.layers))
        self._without: dict[frozenset[int], DecoderModel] = {}

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

    @abstractmethod
    def run(self, parts: Sequence[Part], keep: Keep = "all", hidden: Sequence[int] = ()) -> list[Output]:
        """One run over the parts, whose rows stand one after the other."""

    def without(self, layers: frozenset[int]) -> "DecoderModel":
        """A model that shares these weights and this cache but leaves out some decoder layers."""
        if layers not in self._without:
            require_layers_to_skip(layers, self.depth)
            smaller = copy.copy(self)
            smaller.kept = tuple(index for index in self.kept if index not in layers)
            self._without[layers] = smaller
        return self._without[layers]


def outputs(logits: torch.Tensor, states: dict[int, torch.Tensor], counts: Sequence[int], keep: Keep) -> list[Output]:
    """What each part gets of logits [rows vocab] (its last row's alone where only that was kept) and hidden states."""
    rows = logits.split([1] * len(counts) if keep == "last" else list(counts))
    pieces = {layer: state.split(list(counts)) for layer, state in states.items()}
    return [Output(row, {layer: pieces[layer][i] for layer in states}) for i, row in enumerate(rows)]
