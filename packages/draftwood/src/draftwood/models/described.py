"""A decoder with all else that the native path asks of a model, apart from its class."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import nn

from draftwood.models.decoder import Decoder, read_decoder
from draftwood.models.support import end_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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


CONFIG = ("vocab_size", "max_position_embeddings", "rope_parameters")
