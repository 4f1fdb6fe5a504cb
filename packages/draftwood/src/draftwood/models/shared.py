"""Models whose passes several calls share."""

from collections.abc import Sequence
from typing import Any

from draftwood.models.cached import CachedModel
from draftwood.models.model import EmbeddingsAndHead, Layers, Model
from draftwood.models.parts import Packed
from draftwood.models.requirements import NoEmbeddingsAndHead
from draftwood.together import wait


class SharedPasses(CachedModel):
    """Another model, one pass of which serves all calls of a ``run_together`` that wait for one.

    Outside of these it runs as the other model does. Several objects around one model share its
    passes too.

    Args:
        inner: the model, whose weights and caches these are.
        first: whether its passes are run before those of models for which other calls wait.
    """

    def __init__(self, inner: CachedModel, first: bool = True) -> None:
        sizes, abilities = (inner.layers, inner.hidden_size), inner.abilities - {"mtp"}
        super().__init__(inner.config, inner.pool, abilities, *sizes, inner.device)
        self.inner, self.first, self.adapter = inner, first, inner.adapter

    @property
    def end_tokens(self) -> frozenset[int]:
        return self.inner.end_tokens

    @property
    def embeddings_and_head(self) -> EmbeddingsAndHead:
        if "embeddings_and_head" not in self.abilities:
            return NoEmbeddingsAndHead(self)
        return self.inner.embeddings_and_head

    def check(self, layers: Layers) -> None:
        self.inner.check(layers)

    def catch_up(self, slot: int, length: int) -> bool:
        return self.inner.catch_up(slot, length)

    def run(self, parts: Sequence[Packed]) -> list[Any]:
        return list(wait(self.inner, parts, self._by_slot, self.first))

    def compute(self, parts: Sequence[Packed], hidden: Sequence[int]) -> list[Any]:
        return self.inner.compute(parts, hidden)

    def _by_slot(self, parts: Sequence[Packed]) -> list[Any]:
        """One pass; sequences whose slots lie side by side are read without a copy."""
        order = sorted(range(len(parts)), key=lambda number: parts[number].place.slot)
        found = dict(zip(order, self.inner.run([parts[number] for number in order]), strict=True))
        return [found[number] for number in range(len(parts))]


def shared_passes(model: Model) -> Model:
    """The model with passes that calls can share, where its sequences live in one pool."""
    if isinstance(model, SharedPasses) or not isinstance(model, CachedModel):
        return model
    return SharedPasses(model)
