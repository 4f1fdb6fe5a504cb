"""Models that draft for a target, and models in memory."""

from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedTokenizerBase

from draftwood.loading.models import load_model
from draftwood.loading.vocabulary import require_same_vocabulary
from draftwood.models.model import Model

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_draft_model(
    draft_model: "str | PreTrainedModel",
    tokenizer: PreTrainedTokenizerBase,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    cache: str | None = None,
) -> Model:
    """A draft model for a target with this tokenizer.

    Raises:
        ValueError: where its vocabulary differs, naming the first differing tokens.
    """
    if not isinstance(draft_model, str):
        require_name(cache)
        return in_transformers(draft_model)
    loaded = load_model(draft_model, dtype, device, cache)
    require_same_vocabulary(tokenizer, loaded.tokenizer)
    return loaded.model


def in_transformers(hf_model: "PreTrainedModel") -> Model:
    from draftwood.models.general import general_model  # takes seconds to import

    return general_model(hf_model)


def require_name(cache: str | None) -> None:
    if cache is not None:
        raise ValueError(
            f"cache={cache!r} is for models that draftwood loads itself; give the model by its name"
            " or folder, or leave cache out"
        )
