"""Models that run a decoder part by part, in C++ or in PyTorch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor, nn

from draftwood.models.cached import CachedModel, P
from draftwood.models.decoder import Decoder, read_decoder
from draftwood.models.model import Ability, ModelOutput
from draftwood.models.parts import PackedInput
from draftwood.models.support import end_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG = ("vocab_size", "max_position_embeddings", "rope_parameters")
"""Names that are read from a configuration, as far as they are there."""


@dataclass(frozen=True, eq=False)
class DescribedModel:
    """A decoder, and all else that passes over a model of Transformers need.

    Attributes:
        config: of its text part; the names in ``CONFIG`` are read from it, those that are there.
        end_tokens: with which the model ends its text.
        dtype: of the weights that are floats.
        head: gives the output head as long as the model is in use elsewhere.
    """

    decoder: Decoder
    config: Any
    end_tokens: frozenset[int]
    dtype: torch.dtype
    device: torch.device
    head: Callable[[], nn.Module | None] = lambda: None

    @classmethod
    def of(cls, hf_model: "PreTrainedModel | DescribedModel") -> "DescribedModel":
        """The description of a model, or the one that is given.

        Raises:
            ValueError: as ``read_decoder``.
        """
        if isinstance(hf_model, DescribedModel):
            return hf_model
        return cls(
            read_decoder(hf_model),
            hf_model.config.get_text_config(),
            end_tokens(hf_model),
            hf_model.dtype,
            hf_model.device,
            ref(hf_model.get_output_embeddings()),  # type: ignore[arg-type]
        )


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
        abilities: set[Ability] = {"hidden", "partial", "resume", "fork", "cache"}
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
