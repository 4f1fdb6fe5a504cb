"""Models that run a decoder part by part, in C++ or in PyTorch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from draftwood.arrays import FloatType
from draftwood.models.cached import CachedModel, P
from draftwood.models.decoder import Decoder
from draftwood.models.model import Ability, Device, ModelOutput
from draftwood.models.parts import SequenceInput
from draftwood.optional import backend

CONFIG = ("vocab_size", "max_position_embeddings", "rope_parameters")
"""Names that are read from a configuration, as far as they are there."""


@dataclass(frozen=True, eq=False)
class DescribedModel:
    """A decoder, and all else that passes over a model of Transformers need.

    Attributes:
        config: of its text part; the names in ``CONFIG`` are read from it, those that are there.
        end_tokens: with which the model ends its text.
        dtype: of the weights that are floats.
        head: gives the module of the output head as long as the model is in use elsewhere.
    """

    decoder: Decoder
    config: Any
    end_tokens: frozenset[int]
    dtype: FloatType
    device: Device
    head: Callable[[], Any] = lambda: None

    @classmethod
    def of(cls, hf_model: Any) -> "DescribedModel":
        """The description of a model of Transformers, or the one that is given.

        Raises:
            ValueError: for one of another family.
        """
        if isinstance(hf_model, DescribedModel):
            return hf_model
        return backend("a model of Transformers").describe(hf_model)


class DecoderModel(CachedModel[P]):
    """A model of one of the ``FAMILIES`` behind the ``Model`` protocol.

    The same answers as ``TransformersModel``, with less work around the matrix products. What is
    added up (the residual stream, norms, rotary embedding) is kept in float32.

    Args:
        model: what was read of the model, which was in eval mode.
        pool: the cache of all sequences.
    """

    def __init__(self, model: DescribedModel, pool: P) -> None:
        sizes = model.decoder.sizes
        windows = list(dict.fromkeys(layer.window for layer in model.decoder.layers))
        abilities: set[Ability] = {"hidden", "partial", "resume", "fork", "cache"}
        abilities |= {"embeddings_and_head", "embeddings", "rows"}
        # a network that reads what attention reads cannot be run after it
        abilities |= set() if sizes.is_parallel else {"halves"}
        # where layers have windows of their own nothing is gained
        abilities |= {"window"} if windows == [None] else set()
        layers = len(model.decoder.layers)
        super().__init__(model.config, pool, abilities, layers, sizes.hidden, model.device)
        self.sizes, self.scales, self._end_tokens = sizes, model.decoder.scales, model.end_tokens
        self.windows = windows
        self.dtype: Any = model.dtype

    @property
    def end_tokens(self) -> frozenset[int]:
        return self._end_tokens


def outputs(
    logits: Any, states: dict[int, Any], parts: Sequence[SequenceInput[Any]]
) -> list[ModelOutput]:
    """Give each part its share of the logits [rows vocab] and of the hidden states."""
    if len(parts) == 1:
        return [ModelOutput(logits, states)]
    rows = _pieces([part.wanted for part in parts])
    nodes = _pieces([part.place.count for part in parts])
    return [
        ModelOutput(logits[own], {layer: state[run] for layer, state in states.items()})
        for own, run in zip(rows, nodes, strict=True)
    ]


def _pieces(counts: Sequence[int]) -> list[slice]:
    return [slice(*ends) for ends in pairwise(accumulate(counts, initial=0))]
