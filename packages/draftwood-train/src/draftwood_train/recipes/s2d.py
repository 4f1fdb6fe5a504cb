"""A nested draft LM: all its sizes learn the target's distributions at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from draftwood.heads.kinds import config_type
from draftwood.validation import positive
from draftwood_torch.heads.networks import new_network
from draftwood_train.first_weights import add_nothing, copy_last_layers
from draftwood_train.judging import JUDGED_STEPS, judged_steps
from draftwood_train.losses import LOSSES, head_losses
from draftwood_train.recipe import Judged, PackedRows, TargetWeights, TreePath, require_words
from draftwood_train.unrolled import Unrolled, predicted_places, shifted


@dataclass(frozen=True)
class S2dRecipe:
    """Nested draft LMs of one network, for sorted speculative decoding.

    Kavehzadeh et al. 2024 (arXiv:2407.01955): the loss is the mean of the losses at all exits
    (sorted fine-tuning). Here each exit learns the target's distributions, as ``lm`` does; at first
    the deeper layers add nothing, so that every size begins as the smallest.
    """

    name: ClassVar[str] = "s2d"
    source: ClassVar[str] = "Kavehzadeh et al. 2024, arXiv:2407.01955"

    sizes: int = field(default=3, metadata={"help": "nested draft LMs"})
    step: int = field(default=1, metadata={"help": "layers that a size has more than the last"})
    loss_name: Literal["kl", "tv", "nla", "lk-hybrid"] = field(
        default="kl",
        metadata={"option": "--loss", "help": "what compares its distributions to the target's"},
    )
    start_from: Literal["last-layer", "random"] = field(
        default="last-layer", metadata={"help": "the target's last layer first, or random weights"}
    )
    window: int = field(default=2048, metadata={"help": "newest rows that a row sees"})

    def __post_init__(self) -> None:
        if self.sizes < 1 or self.step < 1:
            raise ValueError(
                f"there is at least one size of one layer, got {self.sizes} and {self.step}"
            )
        positive("window", (self.window,))
        require_words(self)

    def reads(self, layers: int) -> tuple[int, ...]:
        return ()

    def build(self, target: TargetWeights) -> nn.Module:
        exits = tuple(self.step * number for number in range(1, self.sizes + 1))
        head: Any = new_network(config_type("s2d")(target.sizes, exits, self.window))
        if self.start_from == "last-layer":
            copy_last_layers(head, head.layers[:1], target)
            add_nothing(head.layers[1:])
        return head

    def loss(
        self, head: nn.Module, rows: PackedRows, target: TargetWeights, progress: float
    ) -> tuple[Tensor, Mapping[str, float]]:
        counts = predicted_places(rows.is_answer, rows.segments)
        final, normalizer = rows.final[counts], rows.log_normalizer[counts]
        count, kind = max(int(counts.sum()), 1), LOSSES[self.loss_name]
        total, figures = rows.final.new_zeros((), dtype=torch.float32), {}
        for number, states in enumerate(nested_states(head, rows, target), start=1):
            losses, overlaps = head_losses(states[counts], final, normalizer, target.head, kind)
            total = total + losses.sum() / count / self.sizes
            figures[f"overlap_size_{number}"] = float(overlaps.sum()) / count
        return total, figures

    @torch.no_grad()
    def judge(self, head: nn.Module, rows: PackedRows, target: TargetWeights) -> Judged:
        """Expected block efficiency of the largest size, and by number of the others."""
        judged, paths = Judged(0, {}), dict[str, Mapping[TreePath, int]]()
        for number, states in enumerate(nested_states(head, rows, target), start=1):
            levels = [shifted(states, ahead) for ahead in range(1, JUDGED_STEPS + 1)]
            judged = judged_steps(levels, rows, target)
            paths[f"size_{number}"] = judged.paths["block_efficiency"]
        return replace(judged, paths={**paths, **judged.paths})  # the largest comes last


def nested_states(
    head: Any, rows: PackedRows, target: TargetWeights
) -> list[Float[Tensor, "rows places dim"]]:
    """States that the output head reads, of each size from the smallest on."""
    attend = Unrolled(rows.segments, head.config.window)
    attend.next_step()
    embedded = functional.embedding(rows.tokens, target.embedding).float()
    return head(embedded, rows.positions, attend)
