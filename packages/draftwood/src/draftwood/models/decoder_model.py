"""What every way to run a decoder part by part has in common."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.models.described import DescribedModel
from draftwood.models.model import Ability, Output
from draftwood.models.parts import PackedInput
from draftwood.models.pooled import P, PoolOfSequences

if TYPE_CHECKING:
    pass


class DecoderModel(PoolOfSequences[P]):
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
        sizes, depth = model.decoder.sizes, len(model.decoder.layers)
        windows = list(dict.fromkeys(layer.window for layer in model.decoder.layers))
        abilities: set[Ability] = {"hidden", "partial", "resume", "fork", "ends"}
        # a network that reads what attention reads cannot be run after it
        abilities |= set() if sizes.is_parallel else {"halves"}
        # where layers have windows of their own nothing is gained
        abilities |= {"window"} if windows == [None] else set()
        super().__init__(model.config, pool, abilities)
        self.sizes, self.scales = sizes, model.decoder.scales
        self.dtype, self.device = dtype or model.dtype, model.device
        self.end_tokens = model.end_tokens
        self.depth = depth
        self.windows = windows

    @property
    def hidden_size(self) -> int:
        return self.sizes.hidden

    @property
    def layers(self) -> int:
        return self.depth


def scored_attention(
    query: Float[Tensor, "heads rows dim"],
    keys: Float[Tensor, "heads context dim"],
    values: Float[Tensor, "heads context dim"],
    bias: Float[Tensor, "rows context"],
    cap: float | None = None,
    sinks: Float[Tensor, "heads rows"] | None = None,
) -> Float[Tensor, "heads rows dim"]:
    """Attention with scores that stay within ``cap`` (Gemma Team 2024, arXiv:2408.00118), or with
    a score for something that holds nothing (OpenAI 2025, arXiv:2508.10925).

    No fused attention of PyTorch has these, so this goes through all scores, in the types in which
    Transformers does.
    """
    scores = query @ keys.transpose(1, 2) * query.shape[-1] ** -0.5
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    scores = scores + bias
    if sinks is not None:
        scores = torch.cat([scores, sinks[..., None].to(scores.dtype)], dim=-1)
    weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
    return weights[..., : values.shape[1]] @ values


def outputs(
    logits: Tensor, states: dict[int, Tensor], parts: Sequence[PackedInput]
) -> list[Output]:
    """What each part gets of the logits that are wanted [rows vocab] and of hidden states."""
    if len(parts) == 1:
        return [Output(logits, states)]
    counts = [part.place.count for part in parts]
    rows = logits.split([part.wanted for part in parts])
    pieces = {layer: state.split(counts) for layer, state in states.items()}
    return [
        Output(row, {layer: pieces[layer][i] for layer in states}) for i, row in enumerate(rows)
    ]
