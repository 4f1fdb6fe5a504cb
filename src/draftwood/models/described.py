"""A decoder with all else that the native path asks of a model, apart from its class."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from draftwood.models.decoder import Decoder, read_decoder
from draftwood.models.support import end_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class DescribedModel:
    """What passes over a model of Transformers need of it.

    Attributes:
        config: of its text part; the names in ``CONFIG`` are read from it, those that are there.
        end_tokens: with which the model ends its text.
        dtype: of the weights that are floats.
    """

    decoder: Decoder
    config: Any
    end_tokens: frozenset[int]
    dtype: torch.dtype

    @classmethod
    def of(cls, hf_model: "PreTrainedModel") -> "DescribedModel":
        """The description of a model.

        Raises:
            ValueError: as ``read_decoder``.
        """
        config = hf_model.config.get_text_config()
        return cls(read_decoder(hf_model), config, end_tokens(hf_model), hf_model.dtype)


CONFIG = ("vocab_size", "max_position_embeddings", "rope_parameters")
