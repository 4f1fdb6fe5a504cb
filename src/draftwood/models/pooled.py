"""What every model has in common whose sequences live in the slots of one pool."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from draftwood.interfaces.model import ForwardInput, InProcess, Keep, Output
from draftwood.models.cache import CachePool
from draftwood.models.session import PackedInput, PooledSession, parts_of
from draftwood.models.support import context_length


class PoolOfSequences(InProcess, ABC):
    """The part of ``PooledModel`` that does not depend on how a run is computed.

    Several threads may use a model, each with sessions of its own; their runs take turns.

    Args:
        config: of the Transformers model.
        pool: the cache of all sequences.
    """

    def __init__(self, config: Any, pool: CachePool) -> None:
        self.config, self.pool = config, pool
        self._without: dict[frozenset[int], Any] = {}

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def context_length(self) -> int | None:
        return context_length(self.config)

    def start(self) -> PooledSession:
        return PooledSession(self)  # type: ignore[arg-type]

    def forward(self, inputs: Sequence[ForwardInput]) -> list[Output]:
        wanted = tuple(sorted({layer for each in inputs for layer in each.hidden}))
        outputs = self.run(parts_of(inputs, self.pool), hidden=wanted)
        if all(len(each.hidden) == len(wanted) for each in inputs):
            return outputs
        return [
            Output(output.logits, {layer: output.hidden[layer] for layer in each.hidden})
            for each, output in zip(inputs, outputs, strict=True)
        ]

    def run(
        self, parts: Sequence[PackedInput], keep: Keep = "all", hidden: Sequence[int] = ()
    ) -> list[Output]:
        """Run the parts of several sequences together and write their keys and values to the
        pool."""
        with self.pool.lock:
            self.pool.cover([part.place for part in parts])
            return self.compute(parts, keep, hidden)

    @abstractmethod
    def compute(
        self, parts: Sequence[PackedInput], keep: Keep, hidden: Sequence[int]
    ) -> list[Output]:
        """The run, for which there is room in the pool and which has the pool to itself."""

    def without(self, layers: frozenset[int]) -> Any:
        """A model that shares these weights and this cache but leaves out some decoder layers."""
        with self.pool.lock:
            if layers not in self._without:
                self._without[layers] = self._smaller(layers)
            return self._without[layers]

    @abstractmethod
    def _smaller(self, layers: frozenset[int]) -> Any:
        """This model without some decoder layers, made anew."""
