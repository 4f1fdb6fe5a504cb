"""Models that draft for a target, and models in memory."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from draftwood.loading.models import load_model
from draftwood.loading.vocabulary import require_same_vocabulary
from draftwood.models.model import Model
from draftwood.validation import require_kind

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WANTED = "a model or a trained head, or the name, folder or file of one"


def load_draft_model(
    draft_model: "str | PreTrainedModel | Model",
    tokenizer: PreTrainedTokenizerBase,
    cache: str | None = None,
    **how: Any,
) -> tuple[Model, Path | None, str]:
    """A draft model for a target with this tokenizer, the folder of its weights, and their type.

    Args:
        cache: as ``load_model`` takes it, as are ``how``: dtype and device.

    Raises:
        TypeError: for what is no model.
        ValueError: where its vocabulary differs, naming the first differing tokens.
    """
    require_draft_model(draft_model)
    if isinstance(draft_model, str):
        loaded = load_model(draft_model, cache=cache, **how)
        require_same_vocabulary(tokenizer, loaded.tokenizer)
        return loaded.model, loaded.folder, loaded.dtype
    if isinstance(draft_model, Model):
        return draft_model, None, ""
    return in_transformers(draft_model, cache), None, ""


def require_draft_model(draft_model: object) -> None:
    """Raise TypeError for what is no model and no name, unless it is None."""
    require_kind("draft_model", draft_model, (str, nn.Module, Model), WANTED)


def in_transformers(hf_model: "PreTrainedModel", cache: str | None = None) -> Model:
    """A Transformers model in memory; raises ValueError for a type of keys and values."""
    from draftwood.models.general import general_model  # takes seconds to import

    if cache is not None:
        raise ValueError(
            f"cache={cache!r} is for models that draftwood loads itself; give the model by its name"
            " or folder, or leave cache out"
        )
    return general_model(hf_model)
