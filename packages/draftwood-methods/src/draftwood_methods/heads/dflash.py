"""Block head: mask tokens that draft the next places in one pass over the target's states."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.heads.shapes import TensorShapes
from draftwood.native.formats import HeadSizes
from draftwood_torch.heads import layers


@dataclass(frozen=True)
class DflashConfig:
    """Settings of a block head.

    Attributes:
        sizes: of its layers.
        frames: places that it drafts at once: the root's slot and those of mask tokens.
        layers: decoder layers of the block.
        reads: the target's layers whose inputs it reads; the number after the last one means the
            state after the final norm.
        window: newest rows of the context that a slot sees; None for all.
        pairwise: rank of the term that a drafted token adds to the slot after it; 0 for none.
    """

    kind: ClassVar[str] = "dflash"
    sizes: HeadSizes
    frames: int = 5
    layers: int = 1
    reads: tuple[int, ...] = (0,)
    window: int | None = None
    pairwise: int = 0

    def __post_init__(self) -> None:
        if self.frames < 1 or self.layers < 1:
            raise ValueError(
                f"a block has at least one place and layer, got {self.frames} and {self.layers}"
            )
        if not self.reads:
            raise ValueError("a block head reads at least one layer of its target")

    def shapes(self) -> TensorShapes:
        """Shapes of the weights, by their names in ``DflashHead``."""
        dim, count, found = self.sizes.hidden, len(self.reads), TensorShapes(self.sizes)
        found.norm(*(f"fc_norm.{number}" for number in range(count)), "hidden_norm", "norm")
        found.matrix("fc", dim, count * dim)
        found["mask"] = (dim,)
        for number in range(self.layers):
            found.layer(f"layers.{number}.")
        if self.pairwise:
            found.pairwise(self.pairwise)
        return found


class DflashHead(nn.Module):
    """Drafts a block of places in parallel (DFlash, Chen et al. 2026, arXiv:2602.06036).

    The target's states at every place of the text become one row each: normed, joined, mapped,
    normed. A block begins with the root's embedding, and learnt mask tokens take the other slots.
    In each layer the slots attend to the rows, which give keys and values of that layer, and to
    all slots of the block. Slot j drafts the token behind place j of the block, as in DSpark
    (arXiv:2607.05147), whose Markov term this head has too: with ``pairwise`` a drafted token adds
    to the logits of the next slot, so that the block is drafted by a first-order chain.

    Differs from DFlash: states are normed before they are joined, and the mask token is learnt.
    """

    config_type: ClassVar[type[DflashConfig]] = DflashConfig

    def __init__(self, config: DflashConfig) -> None:
        super().__init__()
        self.config, sizes = config, config.sizes
        dim, count = sizes.hidden, len(config.reads)
        self.fc_norm = nn.ModuleList(layers.RmsNorm(dim, sizes.epsilon) for _ in range(count))
        self.fc = nn.Linear(count * dim, dim, bias=False)
        self.hidden_norm = layers.RmsNorm(dim, sizes.epsilon)
        self.mask = nn.Parameter(torch.randn(dim) * dim**-0.5)
        self.layers = nn.ModuleList(layers.DecoderLayer(sizes) for _ in range(config.layers))
        self.norm = layers.RmsNorm(dim, sizes.epsilon)
        if config.pairwise:
            self.pairwise = layers.PairwiseTerm(dim, config.pairwise)

    def combine(
        self, features: Float[Tensor, "... rows reads dim"]
    ) -> Float[Tensor, "... rows dim"]:
        """Rows of the context: the target's states of all layers that it reads as one."""
        parts = zip(self.fc_norm, features.unbind(-2), strict=True)
        return self.hidden_norm(self.fc(torch.cat([norm(part) for norm, part in parts], dim=-1)))

    def born(self, roots: Float[Tensor, "... dim"]) -> Float[Tensor, "... frames dim"]:
        """Blocks of these roots, given by their embeddings, before attention."""
        masks = self.mask.to(roots.dtype).expand(*roots.shape[:-1], self.config.frames - 1, -1)
        return torch.cat([roots[..., None, :], masks], dim=-2)

    def forward(
        self,
        context: Float[Tensor, "... context dim"],
        slots: Float[Tensor, "... slots dim"],
        positions: Int[Tensor, "... rows"],
        attend: layers.AttentionRule,
    ) -> Float[Tensor, "... slots dim"]:
        """The states of slots that the output head reads.

        Args:
            context: new rows, which give keys and values alone.
            slots: of one block or, one after the other, of several.
            positions: of the context's rows, then of the slots.
            attend: which rows see which, the context's first.
        """
        layers: list[Any] = list(self.layers)
        for number, layer in enumerate(layers):
            rows = torch.cat([context, layer.input_layernorm(slots)], dim=-2)
            seen = layer.self_attn(rows, positions, number, attend)
            slots = layer.through_network(slots + seen[..., context.shape[-2] :, :])
        return self.norm(slots)

    def corrected(
        self, states: Float[Tensor, "*batch dim"], embedded: Float[Tensor, "*batch dim"]
    ) -> Float[Tensor, "*batch dim"]:
        """States of slots, given the embeddings of the tokens drafted in the slots before."""
        if not self.config.pairwise:
            return states
        return states + self.pairwise(embedded.to(states.dtype))

    def start(self) -> layers.HeadCache:
        """Keys and values of a new text."""
        return layers.HeadCache(self.config.layers, self.config.sizes, self.fc.weight)

    def draft(
        self, cache: layers.HeadCache, rows: Float[Tensor, "rows dim"], root: Float[Tensor, " dim"]
    ) -> Float[Tensor, "slots dim"]:
        """States of the block behind one text; the cache takes its new rows.

        Args:
            cache: of the rows before.
            rows: new ones, of all places before the root.
            root: embedding of the newest token, which the target has not run.
        """
        before, new = cache.length, len(rows)
        last = before + new
        positions = torch.arange(before, last + self.config.frames, device=rows.device)
        config = self.config
        seen = layers.seen_by_frames(before, new, config.frames, config.window, rows.device)
        attend = cache.attend(seen)
        states = self(rows, self.born(root), positions, attend)
        cache.keep(last)
        return states
