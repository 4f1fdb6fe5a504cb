"""Mask adapter: vectors and low-rank additions with which a model drafts from rows of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from draftwood.heads.shapes import TensorShapes
from draftwood.native.formats import HeadSizes
from draftwood.validation import positive

MATRICES = ("query", "key", "value", "output", "gate", "up", "down")
"""Matrices of a layer that get an addition."""


@dataclass(frozen=True)
class MaskedConfig:
    """Settings of a mask adapter.

    Attributes:
        sizes: of the target's layers.
        layers: of the target.
        masks: rows behind a token, each of which drafts one place.
        rank: of the additions.
    """

    kind: ClassVar[str] = "masked"
    sizes: HeadSizes
    layers: int
    masks: int = 3
    rank: int = 16

    def __post_init__(self) -> None:
        positive("layers, masks and rank", (self.layers, self.masks, self.rank))

    @property
    def reads(self) -> tuple[int, ...]:
        """No states: mask rows run through the target itself."""
        return ()

    def widths(self) -> Mapping[str, tuple[int, int]]:
        """Inputs and outputs of each matrix of a layer."""
        sizes = self.sizes
        hidden, inner = sizes.hidden, sizes.intermediate_size
        queries, keys = sizes.heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        attention = ((hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden))
        network = ((hidden, inner), (hidden, inner), (inner, hidden))
        return dict(zip(MATRICES, (*attention, *network), strict=True))

    def shapes(self) -> TensorShapes:
        """Shapes of the weights, by their names in ``MaskedHead``."""
        found = TensorShapes(self.sizes)
        found["mask_embedding"] = (self.masks, self.sizes.hidden)
        for layer in range(self.layers):
            for name, (inputs, outputs) in self.widths().items():
                found.matrix(f"layers.{layer}.{name}.down", self.rank, inputs)
                found.matrix(f"layers.{layer}.{name}.up", outputs, self.rank)
        return found

    def factors(self, weights: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Factors by matrix, as a model's ``row_adapter`` takes them, of weights by name."""
        return {
            f"{layer}.{name}": (
                weights[f"layers.{layer}.{name}.down.weight"],
                weights[f"layers.{layer}.{name}.up.weight"],
            )
            for layer in range(self.layers)
            for name in MATRICES
        }


class LowRankAddition(nn.Module):
    """An addition to a matrix, which is nothing before it has learnt (LoRA, Hu et al. 2021,
    arXiv:2106.09685).
    """

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, rows: Float[Tensor, "... inputs"]) -> Float[Tensor, "... outputs"]:
        return self.up(self.down(rows))


class MaskedHead(nn.Module):
    """Makes drafts of mask rows that run through the target itself.

    Row i behind a token reads vector i in the place of an embedding, and in every matrix an
    addition of low rank acts on it and on no row of text (gated LoRA: Samragh et al. 2025,
    arXiv:2507.11851; embeddings alone: Chen et al. 2024, arXiv:2405.18628).
    """

    config_type: ClassVar[type[MaskedConfig]] = MaskedConfig

    def __init__(self, config: MaskedConfig) -> None:
        super().__init__()
        self.config, hidden = config, config.sizes.hidden
        self.mask_embedding = nn.Parameter(torch.randn(config.masks, hidden) * hidden**-0.5)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    name: LowRankAddition(*widths, config.rank)
                    for name, widths in config.widths().items()
                }
            )
            for _ in range(config.layers)
        )

    def product(
        self,
        layer: int,
        name: str,
        base: Float[Tensor, "outputs inputs"],
        rows: Float[Tensor, "... inputs"],
    ) -> Float[Tensor, "... outputs"]:
        """The product of mask rows with a matrix of the target, and what is added to it."""
        additions: Any = self.layers[layer]
        return functional.linear(rows, base) + additions[name](rows).to(rows.dtype)
