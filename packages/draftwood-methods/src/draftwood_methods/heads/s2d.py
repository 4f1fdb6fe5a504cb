"""Nested draft LM: its first layers are draft LMs too."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.heads.shapes import TensorShapes
from draftwood.native.formats import HeadSizes
from draftwood_torch.heads import layers

ROWS_AT_ONCE = 128


@dataclass(frozen=True)
class S2dConfig:
    """Settings of a nested draft LM.

    Attributes:
        sizes: of its layers.
        exits: layers of each nested LM, ascending; the last has them all.
        window: newest rows that a row sees; None for all.
    """

    kind: ClassVar[str] = "s2d"
    sizes: HeadSizes
    exits: tuple[int, ...] = (1, 2)
    window: int | None = None

    def __post_init__(self) -> None:
        if not self.exits or self.exits != tuple(sorted({*self.exits})) or self.exits[0] < 1:
            raise ValueError(f"exits ascend from 1 layer on, got {list(self.exits)}")

    @property
    def layers(self) -> int:
        """Decoder layers of the largest."""
        return self.exits[-1]

    @property
    def reads(self) -> tuple[int, ...]:
        """No layers: it reads none of the target's states."""
        return ()

    def shapes(self) -> TensorShapes:
        """Shapes of the weights, by their names in ``S2dHead``."""
        dim, found = self.sizes.hidden, TensorShapes(self.sizes)
        found.matrix("proj", dim, dim)
        for number in range(self.layers):
            found.layer(f"layers.{number}.")
        found.norm("norm")
        return found


class S2dHead(layers.TokenHead):
    """A draft LM whose first layers draft by themselves, behind one norm and output head.

    Sorted speculative decoding (Kavehzadeh et al. 2024, arXiv:2407.01955). Part i holds the layers
    between two exits. The embedding of tokens and the rows of the output head are the target's.
    """

    config_type: ClassVar[type[S2dConfig]] = S2dConfig

    def __init__(self, config: S2dConfig) -> None:
        super().__init__(config.sizes, config.layers)
        self.config, sizes = config, config.sizes
        self.norm = layers.RmsNorm(sizes.hidden, sizes.epsilon)

    def places_of(self, part: int) -> range:
        """Numbers of a part's layers."""
        exits = (0, *self.config.exits)
        return range(exits[part], exits[part + 1])

    def part(
        self,
        part: int,
        state: Float[Tensor, "... rows dim"],
        positions: Int[Tensor, "... rows"],
        attend: layers.AttentionRule,
    ) -> Float[Tensor, "... rows dim"]:
        """Run a part's layers; ``norm`` of the result is what the output head reads.

        Args:
            state: ``proj`` of the tokens' embedding, or what the part before gave.
            attend: which rows see which; it is told the numbers of layers in the whole network.
        """
        for number in self.places_of(part):
            state = self.layers[number](state, positions, number, attend)
        return state

    def forward(
        self,
        embedded: Float[Tensor, "... rows dim"],
        positions: Int[Tensor, "... rows"],
        attend: layers.AttentionRule,
    ) -> list[Float[Tensor, "... rows dim"]]:
        """The states that the output head reads, of each nested LM from the smallest on."""
        state, found = self.proj(embedded), []
        for part in range(len(self.config.exits)):
            state = self.part(part, state, positions, attend)
            found.append(self.norm(state))
        return found


class NestedRows:
    """Rows of one text in each part of a nested LM, which run when a size needs them.

    A row that stopped at an exit waits there with its state; the next row that goes on takes it
    along. So what a size says depends on the text alone, not on where rows before it stopped.
    """

    def __init__(self, head: S2dHead) -> None:
        weight, config = head.proj.weight, head.config
        self.head = head
        self._caches = [layers.HeadCache(config.layers, config.sizes, weight) for _ in config.exits]
        nothing = weight.new_zeros(0, config.sizes.hidden)
        self._waiting = [nothing] * (len(config.exits) + 1)

    def add(self, embedded: Float[Tensor, "rows dim"]) -> None:
        """Append rows of the tokens with these embeddings."""
        self._push(0, self.head.proj(embedded.to(self.head.proj.weight.dtype)))

    def state(self, size: int) -> Float[Tensor, "1 dim"]:
        """State that the output head reads after the newest row, of a size; sizes in rising order.

        Args:
            size: parts to run, from 1 on.
        """
        for part in range(size):
            self._run(part)
        return self.head.norm(self._waiting[size][-1:])

    def keep(self, length: int) -> None:
        """Drop all rows from ``length`` on."""
        for part, cache in enumerate(self._caches):
            cache.keep(length)
            self._waiting[part] = self._waiting[part][: length - cache.length]
        self._waiting[-1] = self._waiting[-1][:0]

    def _push(self, part: int, rows: Float[Tensor, "rows dim"]) -> None:
        self._waiting[part] = torch.cat([self._waiting[part], rows])

    def _run(self, part: int) -> None:
        waiting, cache = self._waiting[part], self._caches[part]
        self._waiting[part] = waiting[:0]
        for rows in waiting.split(ROWS_AT_ONCE) if len(waiting) else ():
            before, window = cache.length, self.head.config.window
            seen = layers.causal(len(rows), before, window, rows.device)
            places = torch.arange(before, before + len(rows), device=rows.device)
            self._push(part + 1, self.head.part(part, rows, places, cache.attend(seen)))
