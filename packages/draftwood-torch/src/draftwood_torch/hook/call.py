"""One call of ``generate``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation import BaseStreamer

# The stopping criteria decide on the length; this only bounds the loop.
_UNBOUNDED = 1 << 30


@dataclass(frozen=True, eq=False)
class Call:
    """One call of ``generate``, as custom loops get it.

    Attributes:
        inputs: for the model, the cache among them.
    """

    model: PreTrainedModel
    input_ids: Tensor
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    config: GenerationConfig
    inputs: dict[str, Any]
    streamer: BaseStreamer | None
    seeds: Sequence[int]

    @property
    def max_length(self) -> int:
        """Most tokens of an answer."""
        limit = self.criteria.max_length
        return _UNBOUNDED if limit is None else max(1, limit - self.input_ids.shape[1])

    @property
    def new(self) -> int:
        """Columns of ``input_ids`` to run.

        These are the newest, where a cache that has the others came with all tokens.
        """
        mask, given = self.inputs.get("attention_mask"), self.input_ids.shape[1]
        whole = getattr(self.config, "_mask_length", -1) if mask is None else mask.shape[1]
        return given - self.past if whole == given else given

    @property
    def past(self) -> int:
        """Columns that the cache has."""
        return self.inputs["past_key_values"].get_seq_length()

    @property
    def longest(self) -> int:
        """Most tokens that a row has at the call's end, padding among them."""
        return self.past + self.new + self.max_length

    @property
    def keeps_cache(self) -> bool:
        """True if someone sees the cache after the call."""
        cache = self.inputs.get("past_key_values")
        return bool(self.config.return_dict_in_generate) or getattr(
            cache, "_is_user_defined", False
        )
