"""A draft LM: a small decoder that learns the target's distributions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from draftwood.validation import positive
from draftwood_torch.heads.lm import LmHead
from draftwood_train.divergences import DIVERGENCES, divergences
from draftwood_train.first_weights import copy_last_layers
from draftwood_train.judging import JUDGED_STEPS, judged_steps
from draftwood_train.losses import LOSSES, head_losses
from draftwood_train.recipe import Judged, PackedRows, TargetWeights, require_words
from draftwood_train.unrolled import Unrolled, predicted_places, shifted


@dataclass(frozen=True)
class LmRecipe:
    """A decoder between the target's embedding and output head, which reads tokens alone.

    Distilled from the target's distributions over its own texts (DistillSpec, Zhou et al. 2024,
    arXiv:2310.08461), starting from the target's newest layers.
    """

    name: ClassVar[str] = "lm"
    source: ClassVar[str] = "Zhou et al. 2024, arXiv:2310.08461"

    layers: int = field(default=1, metadata={"help": "decoder layers of the draft LM"})
    loss_name: Literal["kl", "reverse-kl", "jsd", "tv", "lk-hybrid"] = field(
        default="kl",
        metadata={
            "option": "--loss",
            "help": "what compares its distributions with the target's",
        },
    )
    start_from: Literal["last-layers", "random"] = field(
        default="last-layers", metadata={"help": "the target's last layers, or random weights"}
    )
    window: int = field(default=2048, metadata={"help": "newest rows that a row sees"})

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"a draft LM has at least one layer, got {self.layers}")
        positive("window", (self.window,))
        require_words(self)

    @property
    def newest(self) -> int:
        """Newest layers of the target that it starts from."""
        return self.layers if self.start_from == "last-layers" else 0

    def reads(self, layers: int) -> tuple[int, ...]:
        return ()

    def build(self, target: TargetWeights) -> nn.Module:
        head = LmHead(LmHead.config_type(target.sizes, self.layers, self.window))
        if self.start_from == "last-layers":
            copy_last_layers(head, head.layers, target)
        return head

    def loss(
        self, head: nn.Module, rows: PackedRows, target: TargetWeights, progress: float
    ) -> tuple[Tensor, Mapping[str, float]]:
        counts = predicted_places(rows.is_answer, rows.segments)
        states = states_of_rows(head, rows, target)[counts]
        final, count = rows.final[counts], max(int(counts.sum()), 1)
        if self.loss_name in DIVERGENCES:
            losses = divergences(states, final, target.head, DIVERGENCES[self.loss_name])
            return losses.sum() / count, {}
        losses, overlaps = head_losses(
            states, final, rows.log_normalizer[counts], target.head, LOSSES[self.loss_name]
        )
        return losses.sum() / count, {"overlap_1": float(overlaps.sum()) / count}

    @torch.no_grad()
    def judge(self, head: nn.Module, rows: PackedRows, target: TargetWeights) -> Judged:
        states = states_of_rows(head, rows, target)
        levels = [shifted(states, ahead) for ahead in range(1, JUDGED_STEPS + 1)]
        return judged_steps(levels, rows, target)


def states_of_rows(
    head: nn.Module, rows: PackedRows, target: TargetWeights, tokens: Tensor | None = None
) -> Float[Tensor, "rows places dim"]:
    """States of a draft LM at all places, which the output head reads.

    Args:
        tokens: read in the place of the rows' own.
    """
    assert isinstance(head, LmHead)
    tokens = rows.tokens if tokens is None else tokens
    attend = Unrolled(rows.segments, head.config.window)
    attend.next_step()
    embedded = functional.embedding(tokens, target.embedding).float()
    return head(embedded, rows.positions, attend)
