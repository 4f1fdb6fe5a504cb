"""Models that run a decoder part by part, in C++ or in PyTorch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwood.models.cached import CachedModel, P
from draftwood.models.described import DescribedModel
from draftwood.models.model import Ability, ModelOutput
from draftwood.models.parts import PackedInput


class DecoderModel(CachedModel[P]):
    """A model of one of the ``FAMILIES`` behind the ``Model`` protocol.

    The same answers as ``TransformersModel``, with less work around the matrix products. What is
    added up (the residual stream, norms, rotary embedding) is kept in float32.

    Args:
        model: what was read of the model, which was in eval mode.
        pool: the cache of all sequences.
        dtype: of hidden states that are handed out; None takes the model's.
    """

    def __init__(
        self,
        model: DescribedModel,
        pool: P,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = model.decoder.sizes
        windows = list(dict.fromkeys(layer.window for layer in model.decoder.layers))
        abilities: set[Ability] = {"hidden", "partial", "resume", "fork"}
        abilities |= {"embeddings_and_head"}
        # a network that reads what attention reads cannot be run after it
        abilities |= set() if sizes.is_parallel else {"halves"}
        # where layers have windows of their own nothing is gained
        abilities |= {"window"} if windows == [None] else set()
        layers = len(model.decoder.layers)
        super().__init__(model.config, pool, abilities, layers, sizes.hidden, model.device)
        self.sizes, self.scales, self._end_tokens = sizes, model.decoder.scales, model.end_tokens
        self.dtype, self.windows = dtype or model.dtype, windows

    @property
    def end_tokens(self) -> frozenset[int]:
        return self._end_tokens


def outputs(
    logits: Tensor, states: dict[int, Tensor], parts: Sequence[PackedInput]
) -> list[ModelOutput]:
    """Give each part its share of the logits [rows vocab] and of the hidden states."""
    if len(parts) == 1:
        return [ModelOutput(logits, states)]
    counts = [part.place.count for part in parts]
    rows = logits.split([part.wanted for part in parts])
    pieces = {layer: state.split(counts) for layer, state in states.items()}
    return [
        ModelOutput(row, {layer: pieces[layer][i] for layer in states})
        for i, row in enumerate(rows)
    ]
