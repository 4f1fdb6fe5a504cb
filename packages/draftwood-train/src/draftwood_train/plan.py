"""Tell what a training will take before it runs: time, disk, and how often it sees the data."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from draftwood_train.disk import require_room
from draftwood_train.durations import duration
from draftwood_train.loop import TrainingSettings
from draftwood_train.optimisers import is_matrix
from draftwood_train.recipe import DrafterRecipe, TargetWeights

SHARE = 0.6
"""Share of a training's time that its products take, as a profile of EAGLE heads shows."""

PROBED = 0.1
"""Seconds for which the machine's products are timed."""


@dataclass(frozen=True)
class TrainingPlan:
    """Time and disk that a training will take.

    Attributes:
        data: tokens of the training texts.
        coverage: share of their answers' tokens that the draft vocabulary has.
        recomputes: whether the target runs again for its states.
        rate: tokens a second, as a product that was timed lets expect.
        tokens: that will be read; texts are read again where the data have fewer.
        bytes: on disk at most: a checkpoint, the next one beside it, and the head.
    """

    data: int
    coverage: float
    recomputes: bool
    rate: float
    tokens: float
    bytes: int

    def __str__(self) -> str:
        states = "states computed again" if self.recomputes else "states stored"
        return (
            f"plan: {self.data:,} tokens of data ({states}, {self.coverage:.0%} of the answers in"
            f" the draft vocabulary); about {self.tokens:,.0f} tokens,"
            f" {self.tokens / max(self.data, 1):.1f} times through, in"
            f" {duration(self.tokens / self.rate)} ({self.rate:,.0f} tokens/s by a product"
            f" timed now); {self.bytes / 1e6:.0f} MB on disk"
        )

    def require_room(self, folder: Path) -> None:
        """Raise OSError where the disk of a folder has no room for checkpoints and head."""
        require_room(folder, self.bytes, "two checkpoints and the head")


def tokens_per_second(
    recipe: DrafterRecipe, head: nn.Module, target: TargetWeights, recomputed: int, halves: bool
) -> float:
    """Estimate the speed of a training on this machine by timing a product.

    Args:
        recomputed: products that the target takes for a token; 0 where states are stored.
    """
    own = sum(each.numel() for each in head.parameters() if each.dim() == 2)
    steps = _steps(recipe)
    # forward, and backward by states and by weights; the frozen output head runs twice forward
    products = 3 * steps * (own + target.head.numel()) + recomputed
    return SHARE * _products_per_second(target.head, halves) / products


def _steps(recipe: Any) -> float:
    """Draft steps at a place, on average over a training."""
    later = (getattr(recipe, "unroll", 1) - 1) * getattr(recipe, "later_share", 1.0)
    return 1 + later * (1 - getattr(recipe, "unroll_from", 0.0))


def _products_per_second(head: torch.Tensor, halves: bool) -> float:
    rows = head.to(torch.bfloat16 if halves else torch.float32)
    states, done = rows[:256].clone(), 0
    torch.mm(states, rows.T)  # the first is slower
    began = time.perf_counter()
    while time.perf_counter() - began < PROBED:
        torch.mm(states, rows.T)
        done += len(states) * rows.numel()
    return done / (time.perf_counter() - began)


def bytes_on_disk(head: nn.Module, settings: TrainingSettings) -> int:
    """Bytes of two checkpoints (weights, the best ones, optimisers, average) and of the head.

    A checkpoint is written beside the one that it replaces. Muon keeps a number for each weight,
    AdamW two.
    """
    weights = sum(each.numel() for each in head.parameters())
    checkpoint = 4 * weights * (3 if settings.average else 2)
    checkpoint += sum(
        (4 if is_matrix(name, each) else 8) * each.numel()
        for name, each in head.named_parameters()
        if each.requires_grad
    )
    return 2 * checkpoint + 2 * weights


def planned_tokens(settings: TrainingSettings, rate: float) -> float:
    """Tokens that a training of these settings reads at a rate."""
    if settings.unit == "tokens":
        return settings.amount
    if settings.unit == "steps":
        return settings.amount * settings.accumulate * settings.rows * settings.places
    return settings.amount * 60 * rate
