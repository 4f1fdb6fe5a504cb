"""A block head: mask tokens behind a place learn the target's distributions in one pass."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from draftwood.heads.kinds import config_type
from draftwood.validation import positive
from draftwood_torch.heads.networks import new_network
from draftwood_train.first_weights import add_nothing, copy_last_layers
from draftwood_train.judging import judged_steps
from draftwood_train.losses import LOSSES, Loss, head_losses
from draftwood_train.packed_frames import PackedFrames, drawn, in_order
from draftwood_train.recipe import Judged, PackedRows, TargetWeights, require_words
from draftwood_train.unrolled import predicted_places, shifted


@dataclass(frozen=True)
class DflashRecipe:
    """A block that is drafted in one pass, each token corrected by the one before it.

    DFlash (Chen et al. 2026, arXiv:2602.06036) with the root's slot and the Markov term of DSpark
    (arXiv:2607.05147): blocks begin at drawn places, read the target's states before these, and
    slot j counts exp(-j / ``fades``). In training the term reads the text's own tokens.

    Differs from the papers: slots learn the target's distributions, not its tokens.
    """

    name: ClassVar[str] = "dflash"
    source: ClassVar[str] = "Chen et al. 2026, arXiv:2602.06036"

    frames: int = field(default=5, metadata={"help": "places that it drafts at once"})
    layers: int = field(default=1, metadata={"help": "decoder layers of the block"})
    pairwise: int = field(
        default=64, metadata={"help": "rank of the term between neighbouring slots; 0 for none"}
    )
    features: Literal["three", "last"] = field(
        default="three", metadata={"help": "two earlier states beside the final one, or that alone"}
    )
    anchors: int = field(default=128, metadata={"help": "blocks of a row trained at once"})
    fades: float = field(default=4.0, metadata={"help": "slots after which a loss counts 1/e"})
    loss_name: Literal["kl", "tv", "nla", "lk-hybrid"] = field(
        default="kl",
        metadata={"option": "--loss", "help": "what compares its distributions to the target's"},
    )
    start_from: Literal["last-layer", "random"] = field(
        default="last-layer", metadata={"help": "the target's last layer, or random weights"}
    )
    window: int = field(default=2048, metadata={"help": "newest places that a slot sees"})

    def __post_init__(self) -> None:
        positive("frames, layers and anchors", (self.frames, self.layers, self.anchors))
        positive("window", (self.window,))
        if self.pairwise < 0 or not self.fades > 0:
            raise ValueError(
                f"pairwise must be at least 0 and fades above 0, got {self.pairwise} and"
                f" {self.fades}"
            )
        require_words(self)

    def reads(self, layers: int) -> tuple[int, ...]:
        """The state after the final norm, or with it those of a low and a middle layer."""
        return (layers,) if self.features == "last" else (2, layers // 2, layers)

    def build(self, target: TargetWeights) -> nn.Module:
        """A new head, whose rows are at first the normed final state."""
        config = config_type("dflash")(
            target.sizes,
            frames=self.frames,
            layers=self.layers,
            reads=self.reads(target.layers),
            window=self.window,
            pairwise=self.pairwise,
        )
        head = new_network(config)
        start_from(
            head, target if self.start_from == "last-layer" else replace(target, last_layers=())
        )
        return head

    def loss(
        self, head: nn.Module, rows: PackedRows, target: TargetWeights, progress: float
    ) -> tuple[Tensor, Mapping[str, float]]:
        """The weighted mean over slots of drawn blocks, and each slot's overlap with the target."""
        config: Any = head.config
        counted = counted_slots(rows, config.frames)
        chosen = drawn(counted[..., 0], self.anchors)
        if not bool(chosen.any()):
            return torch.zeros((), device=chosen.device, requires_grad=True), {}
        states = slot_states(head, rows, target, chosen)
        loss = LOSSES[self.loss_name]
        return faded_loss(states, counted[chosen], rows, target, chosen, loss, self.fades)

    @torch.no_grad()
    def judge(self, head: nn.Module, rows: PackedRows, target: TargetWeights) -> Judged:
        """Expected block efficiency and other figures, every slot fed with the true tokens."""
        config: Any = head.config
        levels = [torch.zeros_like(rows.final) for _ in range(config.frames)]
        for number in range(len(rows.tokens)):  # a row at a time: blocks at all places are many
            one = row_of(rows, number)
            chosen = one.segments >= 0
            states = slot_states(head, one, target, chosen).to(rows.final.dtype)
            for level, own in zip(levels, states.unbind(-2), strict=True):
                level[number][chosen[0]] = own
        return judged_steps(levels, rows, target)


def faded_loss(
    states: Float[Tensor, "anchors slots dim"],
    counts: Bool[Tensor, "anchors slots"],
    rows: PackedRows,
    target: TargetWeights,
    chosen: Bool[Tensor, "rows places"],
    loss: Loss,
    fades: float,
) -> tuple[Tensor, Mapping[str, float]]:
    """The weighted mean over slots behind chosen places, and each slot's overlap with the target.

    Args:
        states: slot i is compared with what the target says i places further.
        counts: slots that have something to learn.
        fades: slot i counts exp(-i / fades).
    """
    total, weights, figures = states.new_zeros((), dtype=torch.float32), 0.0, {}
    for slot, own in enumerate(states.unbind(-2)):
        known, weight = counts[:, slot], exp(-slot / fades)
        true, normalizer = (
            shifted(each, slot + 1)[chosen][known] for each in (rows.final, rows.log_normalizer)
        )
        losses, overlaps = head_losses(own[known], true, normalizer, target.head, loss)
        total, weights = total + weight * losses.sum(), weights + weight * len(losses)
        figures[f"overlap_{slot + 1}"] = float(overlaps.sum()) / max(len(overlaps), 1)
    return total / max(weights, 1e-9), figures


def counted_slots(rows: PackedRows, frames: int) -> Bool[Tensor, "rows places {frames}"]:
    """Slots of a block behind each place whose next token is of an answer, or ends it."""
    predicted = predicted_places(rows.is_answer, rows.segments)
    found = [
        shifted(predicted, ahead, False) & (shifted(rows.segments, ahead, -2) == rows.segments)
        for ahead in range(1, frames + 1)
    ]
    return torch.stack(found, dim=-1) & (rows.segments >= 0)[..., None]


def slot_states(
    head: Any, rows: PackedRows, target: TargetWeights, chosen: Bool[Tensor, "rows places"]
) -> Float[Tensor, "blocks slots dim"]:
    """States of the blocks whose last known place is a chosen one, in their order.

    The root is the token after that place; every slot but the root's is corrected by the text's
    token before it.
    """
    frames, dtype = head.config.frames, head.fc.weight.dtype
    order, real = in_order(chosen)
    at = order[..., None] + 1 + torch.arange(frames, device=order.device)  # of slots' own tokens
    tokens = rows.tokens.gather(-1, at.clamp(max=rows.tokens.shape[1] - 1).flatten(1))
    embedded = functional.embedding(tokens.unflatten(1, (-1, frames)), target.embedding).to(dtype)
    slots = head.born(embedded[..., 0, :]).flatten(1, 2)
    context = head.combine(rows.states.to(dtype))
    positions = torch.cat([rows.positions, _positions(rows, order, frames)], dim=-1)
    attend = PackedFrames(frames, _seen(rows, order, head.config.window))
    states = head(context, slots, positions, attend).unflatten(1, (-1, frames))
    first, others = states[..., :1, :], states[..., 1:, :]
    return torch.cat([first, head.corrected(others, embedded[..., 1:, :])], dim=-2)[real]


def _positions(rows: PackedRows, order: Tensor, frames: int) -> Tensor:
    """Positions of slots in their texts, block after block."""
    first = rows.positions.gather(-1, order)[..., None] + 1
    return (first + torch.arange(frames, device=order.device)).flatten(1)


def _seen(rows: PackedRows, order: Tensor, window: int | None) -> Tensor:
    """Places that each block sees: those of its text up to its last known one."""
    back = order[..., None] - torch.arange(rows.tokens.shape[1], device=order.device)
    seen = (back >= 0) if window is None else (back >= 0) & (back < window)
    return seen & (rows.segments[:, None] == rows.segments.gather(-1, order)[..., None])


def row_of(rows: PackedRows, number: int) -> PackedRows:
    """One row of a batch."""
    return PackedRows(**{name: each[number : number + 1] for name, each in vars(rows).items()})


@torch.no_grad()
def start_from(head: Any, target: TargetWeights) -> None:
    """Begin with rows of the final state alone, and a last layer as the target has it.

    Further layers add nothing at first.
    """
    size = head.config.sizes.hidden
    head.fc.weight.mul_(0.1)
    head.fc.weight[:, -size:] += torch.eye(size)
    copy_last_layers(head, head.layers[:1], target)
    add_nothing(head.layers[1:])
