"""Losses of heads side by side, whether they see each other's draft tokens or not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftwood_torch.heads.medusa import MedusaHead
from draftwood_train.judging import judged_steps
from draftwood_train.losses import LOSSES, head_losses
from draftwood_train.recipe import Judged, PackedRows, TargetWeights, require_words
from draftwood_train.unrolled import predicted_places, shifted

DISCOUNT = 0.8
"""Weight of a level's loss, as a share of that of the level before."""


@dataclass(frozen=True)
class MedusaHeads:
    """Recipe of heads that learn the target's distributions, each at its own place.

    Medusa (Cai et al. 2024, arXiv:2401.10774) trains on tokens, with weights that fall by a fifth
    from level to level; as Hydra++ (Ankner et al. 2024, arXiv:2402.05109) these heads learn
    from whole distributions. The tokens drafted before a level are the true ones in training.
    """

    heads: int = field(default=4, metadata={"help": "places that are guessed, one head for each"})
    loss_name: Literal["kl", "tv", "nla", "lk-hybrid"] = field(
        default="kl",
        metadata={"option": "--loss", "help": "what compares their distributions to the target's"},
    )

    def __post_init__(self) -> None:
        if self.heads < 1:
            raise ValueError(f"there is at least one head to train, not {self.heads}")
        require_words(self)

    def reads(self, layers: int) -> tuple[int, ...]:
        """The state after the final norm."""
        return (layers,)

    def loss(
        self, head: nn.Module, rows: PackedRows, target: TargetWeights, progress: float
    ) -> tuple[Tensor, Mapping[str, float]]:
        """The weighted mean of the levels' losses, and each level's overlap with the target."""
        assert isinstance(head, MedusaHead)
        predicted = predicted_places(rows.is_answer, rows.segments)
        weights = [DISCOUNT**level for level in range(head.config.heads)]
        total, figures = rows.final.new_zeros((), dtype=torch.float32), {}
        for level, states in enumerate(level_states(head, rows, target)):
            ahead = level + 1  # offset of the place whose next token is predicted
            counts = shifted(predicted, ahead, False)
            counts &= shifted(rows.segments, ahead, -2) == rows.segments
            final, normalizer = shifted(rows.final, ahead), shifted(rows.log_normalizer, ahead)
            losses, overlaps = head_losses(
                *(states[counts], final[counts], normalizer[counts]),
                *(target.head, LOSSES[self.loss_name]),
            )
            count = max(len(losses), 1)
            total = total + weights[level] / sum(weights) * losses.sum() / count
            figures[f"overlap_{ahead}"] = float(overlaps.sum()) / count
        return total, figures

    @torch.no_grad()
    def judge(self, head: nn.Module, rows: PackedRows, target: TargetWeights) -> Judged:
        """Expected block efficiency and other figures, every level fed with the true tokens."""
        assert isinstance(head, MedusaHead)
        return judged_steps(list(level_states(head, rows, target)), rows, target)


def level_states(head: MedusaHead, rows: PackedRows, target: TargetWeights) -> Iterator[Tensor]:
    """Inputs of the output head at all places [rows places dim], level by level."""
    state = rows.states[..., 0, :].float()
    most = head.config.tokens(head.config.heads - 1)
    following = [shifted(rows.tokens, ahead) for ahead in range(1, most + 1)]
    embedded = state.new_zeros(*state.shape[:2], 0, state.shape[-1])
    if following:
        embedded = functional.embedding(torch.stack(following, dim=-1), target.embedding).float()
    for level in range(head.config.heads):
        yield head(level, state, embedded[..., : head.config.tokens(level), :])
