"""What every model has in common whose sequences live in the slots of one pool."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from draftwood.interfaces.model import (
    Ability,
    ForwardInput,
    InProcess,
    Keep,
    Layers,
    Output,
    require_layers,
)
from draftwood.models.cache import CachePool
from draftwood.models.session import PackedInput, PooledSession, parts_of
from draftwood.models.support import context_length


class PoolOfSequences(InProcess, ABC):
    """The part of ``PooledModel`` that does not depend on how a forward pass is computed.

    Several threads may use a model, each with sessions of its own; their forward passes take turns.

    Args:
        config: of the Transformers model.
        pool: the cache of all sequences.
        abilities: what it can do beyond running trees.
    """

    def __init__(self, config: Any, pool: CachePool, abilities: AbstractSet[Ability]) -> None:
        self.config, self.pool, self.abilities = config, pool, frozenset(abilities)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def context_length(self) -> int | None:
        return context_length(self.config)

    def start(self) -> PooledSession:
        return PooledSession(self)  # type: ignore[arg-type]

    def forward(self, inputs: Sequence[ForwardInput]) -> list[Output]:
        parts = parts_of(inputs, self.pool)
        groups: dict[Layers, list[int]] = {}
        for number, each in enumerate(inputs):
            groups.setdefault(each.layers, []).append(number)

        outputs: dict[int, Output] = {}
        for numbers in groups.values():
            wanted = tuple(sorted({layer for number in numbers for layer in inputs[number].hidden}))
            given = self.run([parts[number] for number in numbers], hidden=wanted)
            for number, output in zip(numbers, given, strict=True):
                outputs[number] = _only(inputs[number].hidden, output)
        return [outputs[number] for number in range(len(inputs))]

    def run(
        self, parts: Sequence[PackedInput], keep: Keep = "all", hidden: Sequence[int] = ()
    ) -> list[Output]:
        """Run the parts of several sequences together; write their keys and values to the pool.

        All of them run the same layers.
        """
        if any(part.layers != parts[0].layers for part in parts[1:]):
            raise ValueError(
                "parts of one run go through the same layers; run others by themselves"
            )
        with self.pool.lock:
            self.pool.cover([part.place for part in parts])
            return self.compute(parts, keep, hidden)

    def check(self, layers: Layers) -> None:
        """Raise ValueError unless this model can run these layers."""
        require_layers(self, layers)  # type: ignore[arg-type]

    @abstractmethod
    def compute(
        self, parts: Sequence[PackedInput], keep: Keep, hidden: Sequence[int]
    ) -> list[Output]:
        """The forward pass, through the layers of the first part.

        There is room for it in the pool, and it has the pool to itself.
        """


def _only(hidden: Sequence[int], output: Output) -> Output:
    """The output with the hidden states of these layers, of those that others wanted too."""
    if len(hidden) == len(output.hidden):
        return output
    return Output(output.logits, {layer: output.hidden[layer] for layer in hidden})
