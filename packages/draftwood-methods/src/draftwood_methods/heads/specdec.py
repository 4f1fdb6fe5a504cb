"""SpecDec's drafter: a decoder of its own that answers one learned query for each next place."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.heads.shapes import TensorShapes
from draftwood.native.formats import HeadSizes
from draftwood_torch.heads import layers


@dataclass(frozen=True)
class SpecdecConfig:
    """Settings of a SpecDec drafter.

    Attributes:
        sizes: of its layers.
        layers: decoder layers that read the text; behind them comes the one that reads queries.
        places: places that it drafts at once, a query for each.
        shares_query: whether all places have one query, as the paper's control has it; they are
            told apart by their positions alone.
        window: newest rows that a row sees, itself included; queries see one row less of the text.
            None for all.
    """

    kind: ClassVar[str] = "specdec"
    sizes: HeadSizes
    layers: int = 1
    places: int = 5
    shares_query: bool = False
    window: int | None = None

    @property
    def reads(self) -> tuple[int, ...]:
        """No layers: it reads none of the target's states."""
        return ()

    def __post_init__(self) -> None:
        if self.layers < 0 or self.places < 1:
            raise ValueError(
                "a SpecDec drafter has no negative number of layers and at least one place, got"
                f" {self.layers} and {self.places}"
            )

    def shapes(self) -> TensorShapes:
        """Shapes of the weights, by their names in ``SpecdecHead``."""
        dim, found = self.sizes.hidden, TensorShapes(self.sizes)
        found.matrix("proj", dim, dim)
        for number in range(self.layers):
            found.layer(f"layers.{number}.")
        found["queries"] = (1 if self.shares_query else self.places, dim)
        found.layer("drafting.")
        found.norm("norm")
        return found


class SpecdecHead(layers.TokenHead):
    """Drafts several places in one call, from the text alone (Xia et al. 2022, arXiv:2203.16487).

    Layers over the text give each row the state of the token there. One more layer reads a learned
    query for each of the next places: query i of the row at t has position t + i, and attends to
    the text up to t and to all queries. The target's output head reads what comes of it.

    The paper's Spec-Drafter is an encoder of the source and a decoder of masks. Here both read one
    text, as the models that they draft for have no source apart from it.
    """

    config_type: ClassVar[type[SpecdecConfig]] = SpecdecConfig

    def __init__(self, config: SpecdecConfig) -> None:
        super().__init__(config.sizes, config.layers)
        self.config, sizes = config, config.sizes
        count = 1 if config.shares_query else config.places
        self.queries = nn.Parameter(torch.randn(count, sizes.hidden) * sizes.hidden**-0.5)
        self.drafting = layers.DecoderLayer(sizes)
        self.norm = layers.RmsNorm(sizes.hidden, sizes.epsilon)

    def forward(
        self,
        text: Float[Tensor, "... rows dim"],
        positions: Int[Tensor, "... rows_and_queries"],
        attend: layers.AttentionRule,
        anchors: int = 1,
    ) -> Float[Tensor, "... queries dim"]:
        """The states that the output head reads, for the queries of so many rows of the text.

        Args:
            text: what ``read`` gave.
            positions: of the text's rows, then of the queries.
            attend: which rows see which, the text's first.
        """
        own = self.queries.expand(self.config.places, -1).repeat(anchors, 1)
        queries = own.expand(*text.shape[:-2], *own.shape)
        rows = torch.cat([text, queries], dim=-2)
        normed = self.drafting.input_layernorm(rows)
        seen = self.drafting.self_attn(normed, positions, 0, attend)[..., text.shape[-2] :, :]
        return self.norm(self.drafting.through_network(queries + seen))

    def caches(self) -> tuple[layers.HeadCache, layers.HeadCache]:
        """Empty caches of one text: of the layers that read it, and of the one that drafts."""
        config, like = self.config, self.proj.weight
        return layers.HeadCache(config.layers, config.sizes, like), layers.HeadCache(
            1, config.sizes, like
        )

    def draft(
        self, caches: tuple[layers.HeadCache, layers.HeadCache], embedded: Float[Tensor, "rows dim"]
    ) -> Float[Tensor, "places dim"]:
        """States of the places behind the newest row of one text; the caches take its new rows.

        Args:
            caches: of the rows before.
            embedded: new rows, at least one.
        """
        (reading, drafting), rows = caches, len(embedded)
        before, last, places = reading.length, reading.length + rows, self.config.places
        at = torch.arange(before, last + places, device=embedded.device)
        seen = layers.causal(rows + places, before, self.config.window, embedded.device)
        text = self.read(embedded, at[:rows], reading.attend(seen[:rows, :last]))
        seen[rows:, :last] = seen[rows, :last]  # however far ahead, they see the same rows
        seen[rows:, last:] = True  # and each other
        states = self(text, at, drafting.attend(seen))
        drafting.keep(last)
        return states
