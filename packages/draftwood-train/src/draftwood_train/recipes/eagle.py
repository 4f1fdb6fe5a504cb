"""EAGLE heads, which continue the target's hidden states step by step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftwood.heads.eagle import EagleHead
from draftwood_train.judging import judged_steps
from draftwood_train.losses import LOSSES, head_losses
from draftwood_train.recipe import Judged, PackedRows, TargetWeights
from draftwood_train.unrolled import Unrolled, predicted_places, shifted

JUDGED_STEPS = 4
"""Levels of the tree that ``judge`` considers; trees of 8 nodes are rarely deeper."""


@dataclass(frozen=True)
class DraftStep:
    """One draft step at all places.

    Attributes:
        states: input of the output head [rows places dim].
        fed: state that is fed back, likewise.
        target: offset of the place whose next token is predicted, from the row's own.
        counts: whether the predicted token is part of an answer [rows places].
    """

    states: Tensor
    fed: Tensor
    target: int
    counts: Tensor


@dataclass(frozen=True)
class EagleRecipe:
    """A decoder layer over the target's states and the next token's embedding.

    EAGLE-3 (Li et al. 2025, arXiv:2503.01840) with the norms of EAGLE-3.1 (arXiv:2605.09992): it
    drafts on from its own states in training too, and learns from the target's distributions alone.
    The variant ``eagle-1`` learns to continue the states themselves (Li et al. 2024,
    arXiv:2401.15077): it reads the last one only, and the loss compares states and, a tenth of it,
    distributions. ``fspad`` does so too, with a state for each of the two (Gui et al. 2024,
    arXiv:2408.15562).
    """

    name: ClassVar[str] = "eagle"
    source: ClassVar[str] = "Li et al. 2025, arXiv:2503.01840"

    layers: int = field(default=1, metadata={"help": "decoder layers of the head"})
    unroll: int = field(default=3, metadata={"help": "draft steps in a row, one being easier"})
    unroll_from: float = field(
        default=2 / 3, metadata={"help": "share of the training that has one draft step alone"}
    )
    loss_name: Literal["kl", "tv", "nla", "lk-hybrid"] = field(
        default="kl",
        metadata={"option": "--loss", "help": "what compares its distributions with the target's"},
    )
    variant: Literal["eagle-3", "eagle-1", "fspad"] = field(
        default="eagle-3", metadata={"help": "which states it reads, and what it learns"}
    )
    noise: float = field(
        default=0.05, metadata={"help": "noise on the target's states, as a share of their size"}
    )
    start_from: Literal["last-layer", "random"] = field(
        default="random", metadata={"help": "the target's last layer, or random weights"}
    )
    window: int = field(default=2048, metadata={"help": "newest rows that a row sees"})

    def __post_init__(self) -> None:
        if self.unroll < 1 or self.layers < 1:
            raise ValueError("an EAGLE head has at least one layer and is trained for one step")
        if self.loss_name not in LOSSES:
            raise ValueError(f"loss is one of {', '.join(LOSSES)}, not {self.loss_name!r}")

    def reads(self, layers: int) -> tuple[int, ...]:
        if self.variant != "eagle-3":
            return (layers,)
        if layers < 6:
            raise ValueError(f"EAGLE-3 reads layers of 6 or more, the target has {layers}")
        return tuple(sorted({2, layers // 2, layers - 3}))

    def build(self, target: TargetWeights) -> nn.Module:
        is_fspad = self.variant == "fspad"
        config = EagleHead.config_type(
            sizes=target.sizes,
            layers=self.layers,
            reads=self.reads(target.layers),
            norms_features=self.variant == "eagle-3",
            feeds_normed=not is_fspad,
            window=self.window,
            feature_sampling=is_fspad,
            partial_alignment=is_fspad,
        )
        head = EagleHead(config)
        if self.start_from == "last-layer":
            start_from(head, target)
        if self.variant != "eagle-3":
            nn.init.eye_(head.fc.weight)
            head.fc.requires_grad_(False)  # a drafted state takes the place of what it reads
        return head

    def loss(
        self, head: nn.Module, rows: PackedRows, target: TargetWeights, progress: float
    ) -> tuple[Tensor, Mapping[str, float]]:
        assert isinstance(head, EagleHead)
        steps = self.unroll if progress >= self.unroll_from else 1
        total, figures = rows.final.new_zeros((), dtype=torch.float32), {}
        for number, step in enumerate(self._unrolled(head, rows, target, steps)):
            each, overlap = self._step_loss(step, rows, target)
            total = total + each / steps
            figures[f"overlap_{number + 1}"] = overlap
        return total, figures

    @torch.no_grad()
    def judge(self, head: nn.Module, rows: PackedRows, target: TargetWeights) -> Judged:
        assert isinstance(head, EagleHead)
        steps = self._unrolled(head, rows, target, JUDGED_STEPS)
        return judged_steps([step.states for step in steps], rows, target)

    def _unrolled(
        self, head: EagleHead, rows: PackedRows, target: TargetWeights, steps: int
    ) -> Iterator[DraftStep]:
        features = rows.states.float()
        if head.training and self.noise:
            size = features.pow(2).mean(-1, keepdim=True).sqrt()
            features = features + self.noise * size * torch.randn_like(features)
        state = head.combine(features).float()
        predicted = predicted_places(rows.is_answer, rows.segments)
        attend = Unrolled(rows.segments, head.config.window)
        for number in range(steps):
            ahead = number + 1
            inside = shifted(rows.segments, ahead, -2) == rows.segments
            embedded = functional.embedding(shifted(rows.tokens, ahead), target.embedding).float()
            attend.next_step()
            state, normed = head(embedded, state, rows.positions + number, attend)
            yield DraftStep(normed, state, ahead, inside & shifted(predicted, ahead, False))

    def _step_loss(
        self, step: DraftStep, rows: PackedRows, target: TargetWeights
    ) -> tuple[Tensor, float]:
        counts = step.counts
        states = step.states[counts]
        final = shifted(rows.final, step.target)[counts]
        normalizer = shifted(rows.log_normalizer, step.target)[counts]
        losses, overlaps = head_losses(
            states, final, normalizer, target.head, LOSSES[self.loss_name]
        )
        count = max(len(losses), 1)
        mean, overlap = losses.sum() / count, float(overlaps.sum()) / count
        if self.variant != "eagle-3":
            mean = functional.smooth_l1_loss(step.fed[counts].float(), final.float()) + 0.1 * mean
        return mean, overlap


@torch.no_grad()
def start_from(head: EagleHead, target: TargetWeights) -> None:
    """Give a head the weights of the target's newest layers, as far as they fit.

    Queries, keys and values read the token beside the state; of the token they read nothing at
    first but what their random weights say.
    """
    count = len(head.config.reads)
    size = head.config.sizes.hidden
    if head.config.norms_features:
        # what comes out first is the newest of the states that it reads
        head.fc.weight.mul_(0.1)
        head.fc.weight[:, (count - 1) * size :] += torch.eye(size)
    if target.final_norm is not None:
        head.norm.weight.copy_(target.final_norm)
    newest = target.last_layers[-len(head.layers) :]
    for layer, known in zip(reversed(head.layers), reversed(newest), strict=False):
        for name, weight in layer.named_parameters():
            given = known.get("input_layernorm.weight" if name == "hidden_norm.weight" else name)
            if given is None or (name == "input_layernorm.weight" and layer is head.layers[0]):
                continue
            if given.shape == weight.shape:
                weight.copy_(given)
            elif weight.dim() == 2 and weight.shape[1] == 2 * given.shape[1]:
                weight[:, given.shape[1] :].copy_(given)
