"""Targets and models that draft for them, by name or in memory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from draftwood.loading.models import load_model
from draftwood.models.model import Model
from draftwood.optional import backend
from draftwood.tokenizer.protocol import AnyTokenizer
from draftwood.validation import require_kind

WANTED = "a model or a trained head, or the name, folder or file of one"


class ModelInMemory(Protocol):
    """A causal language model of Transformers.

    Attributes:
        config: its configuration.
    """

    config: Any

    def get_output_embeddings(self) -> Any: ...


@dataclass(frozen=True)
class ModelAtHand:
    """A model that was loaded by its name, or given in memory.

    Attributes:
        folder: of its weights; None for a model in memory.
        dtype: as ``LoadedModel`` has it; empty for a model in memory.
    """

    model: Model
    tokenizer: Any
    name: str = ""
    folder: Path | None = None
    dtype: str = ""


def load_target(
    target: Any,
    tokenizer: AnyTokenizer | None,
    processes: int = 1,
    cache: str | None = None,
    adapter: str | None = None,
    **how: Any,
) -> ModelAtHand:
    """A target by its name, or around a model in memory.

    Args:
        target: a name, or a model of Transformers.
        tokenizer: needed with a model in memory; None takes the one of the name.
        processes: that hold it in parts.
        cache: as ``load_model`` takes it, as are the adapter and ``how``: dtype and device.

    Raises:
        TypeError: for what is no tokenizer.
        ValueError: for a model in memory without a tokenizer, with an adapter or in several
            processes.
    """
    if tokenizer is not None and not hasattr(tokenizer, "chat_template"):
        raise TypeError(
            f"tokenizer must be one of draftwood or Transformers, got {tokenizer!r:.80}"
        )
    if isinstance(target, str):
        how |= {"cache": cache, "processes": processes, "adapter": adapter}
        loaded = load_model(target, **how)
        tokenizer = tokenizer or loaded.tokenizer
        return ModelAtHand(loaded.model, tokenizer, target, loaded.folder, loaded.dtype)
    if adapter is not None:
        raise ValueError(
            "an adapter is added to a model that is loaded by its name; name the model, or merge"
            " the adapter into it with PEFT"
        )
    if processes > 1:
        raise ValueError("several processes load a model by its name; give one, or leave tp out")
    if tokenizer is None:
        raise ValueError(
            "a model given as an object needs its tokenizer: draftwood.load(model, tokenizer)"
        )
    model, name = in_transformers(target, cache), target.config.name_or_path
    return ModelAtHand(model, tokenizer, name or type(target).__name__)


def load_draft_model(
    draft_model: Any,
    tokenizer: AnyTokenizer,
    cache: str | None = None,
    **how: Any,
) -> ModelAtHand:
    """A draft model for a target with this tokenizer.

    Args:
        draft_model: a name, a model of draftwood or one of Transformers.
        cache: as ``load_model`` takes it, as are ``how``: dtype and device.

    Raises:
        TypeError: for what is no model.
        ValueError: where its vocabulary differs, naming the first differing tokens.
    """
    require_draft_model(draft_model)
    if isinstance(draft_model, str):
        from draftwood.loading.vocabulary import require_same_vocabulary

        loaded = load_model(draft_model, cache=cache, **how)
        require_same_vocabulary(tokenizer, loaded.tokenizer)
        return ModelAtHand(loaded.model, tokenizer, draft_model, loaded.folder, loaded.dtype)
    if isinstance(draft_model, Model):
        return ModelAtHand(draft_model, tokenizer)
    return ModelAtHand(in_transformers(draft_model, cache), tokenizer)


def require_draft_model(draft_model: object) -> None:
    """Raise TypeError for what is no model and no name, unless it is None."""
    if not hasattr(draft_model, "named_parameters"):  # as every module of PyTorch has
        require_kind("draft_model", draft_model, (str, Model), WANTED)


def in_transformers(hf_model: Any, cache: str | None = None) -> Model:
    """A Transformers model in memory; raises ValueError for a type of keys and values."""
    runner = backend("a model of Transformers")
    if cache is not None:
        raise ValueError(
            f"cache={cache!r} is for models that draftwood loads itself; give the model by its name"
            " or folder, or leave cache out"
        )
    return runner.general_model(hf_model)
