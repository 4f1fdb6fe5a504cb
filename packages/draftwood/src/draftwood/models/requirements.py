"""Look up what a model can do beyond its protocol; refuse what it cannot, and strange tokens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

import numpy as np

from draftwood.arrays import as_array
from draftwood.models.model import (
    ALL_LAYERS,
    Ability,
    Layers,
    Model,
)

if TYPE_CHECKING:
    from draftwood.models.mtp import MtpHead

_DOING: dict[Ability, str] = {
    "hidden": "gives hidden states",
    "partial": "can leave out decoder layers",
    "halves": "can leave out attention and MLP of a layer apart from each other",
    "resume": "can stop a pass between two layers and go on later",
    "window": "can read only a part of the prefix",
    "int4": "runs natively and keeps its weights in more than 4 bits",
    "embeddings_and_head": "gives its embedding and output head",
    "embeddings": "reads vectors in the place of tokens",
    "fork": "can fork a session",
    "cache": "lets drafters read its keys and values, and keeps them as floats",
    "beside": "makes two passes over one text at the same time",
    "rows": "lets rows of a pass see later ones",
    "adapted_rows": "lets an adapter act on some rows of a pass alone",
    "mtp": "comes with a layer for multi-token prediction",
}
_OTHERWISE = "use another model or method"
_CURES: dict[Ability, str] = {
    "embeddings": "load it in one process, or use a model whose layers are all attention",
    "int4": "load it with dtype bfloat16, as other types may keep the 4 bits of its file, or use"
    " another method",
    "cache": "load it with a cache of floats, or use another model or method",
    "mtp": "use a model whose folder or file has one, or method auto",
    "adapted_rows": "load it on the CPU in a type that runs natively, or use another method",
}


@runtime_checkable
class BlockCache(Protocol):
    """A cache in blocks as schedulers see it, for instance ``NativeModel.pool``.

    Blocks that are only held for texts to come count as free.

    Attributes:
        limit: most bytes that it may take; None for no limit.
        block_bytes: of a block.
        beside: blocks for which each text has bytes beside its own, at most.
    """

    limit: int | None
    block_bytes: int
    beside: int

    @property
    def free_blocks(self) -> int | None:
        """None where there is no limit."""
        ...

    def blocks_for(self, length: int) -> int:
        """Blocks that so many tokens take."""
        ...

    def blocks_wanted(self, slot: int, start: int, count: int) -> int:
        """Blocks that must be found before so many places of a slot are written."""
        ...


def block_cache(model: Model) -> BlockCache | None:
    """Look up the cache in blocks of a model; None for a model without one."""
    pool = getattr(model, "pool", None)
    return pool if isinstance(pool, BlockCache) else None


def require_ability(model: Model, ability: Ability, who: str) -> None:
    """Raise ValueError unless the model has an ability that ``who`` needs, naming all three."""
    if ability not in model.abilities:
        raise ValueError(
            f"{who} needs a model that {_DOING[ability]} (the ability {ability!r}), which"
            f" {type(model).__name__} does not; {_CURES.get(ability, _OTHERWISE)}"
        )


def own_mtp_head(model: Model) -> "MtpHead | None":
    """Look up the layer for multi-token prediction that comes with a model; None without one."""
    return getattr(model, "mtp", None) if "mtp" in model.abilities else None


def require_mtp_head(model: Model, who: str) -> "MtpHead":
    """Return the same; raises ValueError, on behalf of ``who``, where there is none."""
    require_ability(model, "mtp", who)
    found = own_mtp_head(model)
    assert found is not None  # by its abilities
    return found


def require_embeddings(model: Model, tokens: Sequence[int], embeddings: Any) -> None:
    """Raise ValueError unless the model reads these vectors [rows hidden_size], without tokens."""
    require_ability(model, "embeddings", "a pass over given vectors")
    shape = tuple(embeddings.shape)
    if len(shape) != 2 or not shape[0] or shape[1] != model.hidden_size or len(tokens):
        raise ValueError(
            f"embeddings are at least one vector of {model.hidden_size} numbers without tokens, got"
            f" the shape {list(shape)} and {len(tokens)} tokens; take mixtures of what"
            " embeddings_and_head.embed gives"
        )


def require_rows(model: Model) -> None:
    """Raise ValueError unless the model runs rows with a mask of their own."""
    require_ability(model, "rows", "a pass over rows with a mask of their own")


class NoEmbeddingsAndHead:
    """Refuse by name what a model lacks the ability to give."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def embed(self, tokens: object) -> NoReturn:
        self._refuse("an embedding of tokens")

    def logits(self, hidden: object, tokens: object = None, normed: bool = False) -> NoReturn:
        self._refuse("logits after a hidden state")

    def weights(self) -> NoReturn:
        self._refuse("a look at the weights of its embedding and head")

    def _refuse(self, act: str) -> NoReturn:
        require_ability(self.model, "embeddings_and_head", act)
        raise AssertionError(
            f"{type(self.model).__name__} claims an embedding and head that it has not"
        )


def require_layers(model: Model, layers: Layers, who: str = "a forward pass") -> None:
    """Raise ValueError unless the model can run these layers, and they are more than none."""
    if layers == ALL_LAYERS:
        return
    if layers.start != 0 or layers.stop is not None:
        require_ability(model, "resume", f"{who} that starts or stops between layers")
        stop, last = layers.stop, model.layers - 1
        if not 0 <= layers.start <= last or (stop is not None and not layers.start < stop <= last):
            raise ValueError(
                f"a pass of {model.layers} layers starts at one of them and may stop before one of"
                f" 1..{last} behind it, got {layers.start} and {layers.stop}"
            )
    if layers.window is not None:
        require_ability(model, "window", f"{who} with a window")
        if min(layers.window) < 0:
            raise ValueError(f"a window has no negative numbers of places, got {layers.window}")
    if layers.int4:
        require_ability(model, "int4", f"{who} with 4 bits")
    some = layers.without_attention | layers.without_mlp
    if not some:
        return
    require_ability(model, "partial", who)
    known = frozenset(range(model.layers))
    if not some <= known or layers.without_attention & layers.without_mlp == known:
        raise ValueError(
            f"layers to skip must be some of 0..{model.layers - 1} and not all, got {sorted(some)}"
        )


def require_part(tokens: Any, vocabulary: int) -> None:
    """Raise ValueError unless these, an array or a tensor, are tokens of the vocabulary."""
    wrong = _outside(tokens, vocabulary)
    if wrong:
        raise ValueError(
            f"tokens of a part must be 0 to {vocabulary - 1}, the model's vocabulary, got"
            f" {wrong[:8]}"
        )


def beyond(tokens: Any, vocabulary: int) -> str:
    """Says of a prompt that some of its tokens are not of the vocabulary."""
    found = _outside(tokens, vocabulary)
    some = ", ".join(map(str, found[:8])) + (
        f" and {len(found) - 8} more" if len(found) > 8 else ""
    )
    return (
        f"token ids must be 0 to {vocabulary - 1}, the model's vocabulary, got {some}; encode the"
        " prompt with the model's own tokenizer"
    )


def _outside(tokens: Any, vocabulary: int) -> list[int]:
    given = np.asarray(as_array(tokens))
    return np.unique(given[(given < 0) | (given >= vocabulary)]).tolist()
