"""A mask adapter: rows of mask vectors behind a place learn the target's next distributions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from draftwood.heads.kinds import config_type
from draftwood.validation import positive
from draftwood_torch.heads.networks import new_network
from draftwood_train.frozen_layers import has_beginning, rows_below
from draftwood_train.judging import path_counts, ranks_of
from draftwood_train.losses import head_losses, kl
from draftwood_train.packed_frames import drawn, in_order
from draftwood_train.recipe import Judged, PackedRows, TargetWeights
from draftwood_train.recipes.dflash import counted_slots, faded_loss
from draftwood_train.unrolled import shifted

OF_LLAMA = tuple(
    f"{name}.weight"
    for name in (
        *("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        *("self_attn.o_proj", "post_attention_layernorm"),
        *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    )
)
"""Weights of a layer without which the target's layers cannot run here."""
JUDGED = 8
"""Every so many-th place of a text is judged."""


@dataclass(frozen=True)
class MaskedRecipe:
    """Vectors for mask rows, and low-rank additions that act on these rows alone.

    The target's weights stay as they are, and so do all rows of text (gated LoRA: Samragh et al.
    2025, arXiv:2507.11851). Row i behind a drawn place learns the target's distribution i places
    further, given the true text, and counts exp(-i / ``fades``); vectors alone are Chen et al.
    2024, arXiv:2405.18628.
    """

    name: ClassVar[str] = "masked"
    source: ClassVar[str] = "Samragh et al. 2025, arXiv:2507.11851"
    runs_target: ClassVar[bool] = True

    masks: int = field(default=3, metadata={"help": "mask rows behind a token"})
    rank: int = field(default=16, metadata={"help": "rank of the additions"})
    anchors: int = field(default=32, metadata={"help": "places of a row that are trained at once"})
    fades: float = field(default=4.0, metadata={"help": "mask rows after which a loss counts 1/e"})

    def __post_init__(self) -> None:
        positive("masks, rank and anchors", (self.masks, self.rank, self.anchors))
        if not self.fades > 0:
            raise ValueError(f"fades must be above 0, got {self.fades}")

    def reads(self, layers: int) -> tuple[int, ...]:
        """No states are read: the texts run through the target's layers again."""
        return ()

    def build(self, target: TargetWeights) -> nn.Module:
        """An adapter that adds nothing yet; its vectors begin as the mean of all embeddings."""
        if len(target.last_layers) != target.layers:
            raise ValueError("a mask adapter needs all layers of its target, as train masked reads")
        lacking = [part for own in target.last_layers for part in OF_LLAMA if part not in own]
        if lacking:
            raise ValueError(
                f"a mask adapter needs a target of Llama's parts, and a layer has no {lacking[0]};"
                " train a drafter of another kind for it"
            )
        config = config_type("masked")(target.sizes, target.layers, self.masks, self.rank)
        head: Any = new_network(config)
        with torch.no_grad():
            mean = target.embedding.float().mean(0)
            head.mask_embedding.mul_(0.1 * mean.norm()).add_(mean)
        return head

    def loss(
        self, head: nn.Module, rows: PackedRows, target: TargetWeights, progress: float
    ) -> tuple[Tensor, Mapping[str, float]]:
        """The weighted mean over mask rows of drawn places, and their overlap with the target."""
        adapter: Any = head
        counted = _counted(rows, adapter.config.masks)
        chosen = drawn(counted[..., 0], self.anchors)
        if not bool(chosen.any()):
            return torch.zeros((), device=chosen.device, requires_grad=True), {}
        states = mask_states(adapter, rows, target, chosen)
        return faded_loss(states, counted[chosen], rows, target, chosen, kl, self.fades)

    @torch.no_grad()
    def judge(self, head: nn.Module, rows: PackedRows, target: TargetWeights) -> Judged:
        """Expected tokens of a step where mask rows of the last one draft it, and other figures."""
        adapter: Any = head
        counts = _counted(rows, adapter.config.masks).all(-1) & rows.is_greedy
        chosen = counts & (rows.positions % JUDGED == 0)
        if not bool(chosen.any()):
            return Judged(0, {})
        states = mask_states(adapter, rows, target, chosen)
        with torch.autocast(states.device.type, enabled=False):
            ranks = torch.stack(
                [
                    ranks_of(own, shifted(rows.tokens, place + 2)[chosen], target)
                    for place, own in enumerate(states.unbind(-2))
                ],
                dim=-1,
            )
            true, normalizer = (
                shifted(each, 1)[chosen] for each in (rows.final, rows.log_normalizer)
            )
            _, overlaps = head_losses(states[:, 0], true, normalizer, target.head, kl)
        figures = {
            f"guess_{place + 1}": float((own == 0).sum())
            for place, own in enumerate(ranks.unbind(-1))
        }
        figures |= {"overlap": float(overlaps.sum())}
        return Judged(len(ranks), figures, {"block_efficiency": path_counts(ranks)})


def _counted(rows: PackedRows, masks: int) -> Bool[Tensor, "rows places {masks}"]:
    """Mask rows behind each place that have something to learn, where all text before is there."""
    return counted_slots(rows, masks) & has_beginning(rows)[..., None]


def mask_states(
    head: Any, rows: PackedRows, target: TargetWeights, chosen: Bool[Tensor, "rows places"]
) -> Float[Tensor, "anchors {head.config.masks} dim"]:
    """States of mask rows behind the chosen places, in their order."""
    order, real = in_order(chosen)
    return rows_below(head, head.mask_embedding, rows, target, order)[real]
