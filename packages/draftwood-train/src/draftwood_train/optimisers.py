"""Muon for the matrices of layers, AdamW for all else, and their schedule of rates."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

EMBEDDING_LIKE = ("embedding", "frame_bias", "lm_head", "blank", "queries")
"""Parts of a parameter's name that tell a table of vectors from the matrix of a layer."""


@dataclass(frozen=True)
class Rates:
    """Learning rates and their schedule.

    Attributes:
        muon: of matrices (Jordan et al. 2024; Liu et al. 2025, arXiv:2502.16982).
        adamw: of norms, biases, tables of vectors and CTC's frames (arXiv:1711.05101).
        warm_up: steps in which they rise from 0.
        decay: share of the training in which they fall to 0, at its end.
    """

    muon: float = 5e-3
    adamw: float = 1e-3
    warm_up: int = 20
    decay: float = 0.3

    def factor(self, step: int, progress: float) -> float:
        """Factor of the learning rates at a step, with so much of the training done."""
        rising = min(1.0, (step + 1) / max(self.warm_up, 1))
        falling = min(1.0, (1 - progress) / self.decay) if self.decay > 0 else 1.0
        return rising * max(falling, 0.0)


class Optimisers:
    """Both optimisers of a drafter as one.

    Args:
        head: whose parameters learn; those without gradients are frozen.

    Attributes:
        has_matrices: whether any learn with Muon.
    """

    def __init__(self, head: nn.Module, rates: Rates) -> None:
        self.rates = rates
        learns = [(name, each) for name, each in head.named_parameters() if each.requires_grad]
        matrices = [each for name, each in learns if is_matrix(name, each)]
        others = [each for name, each in learns if not is_matrix(name, each)]
        self.parameters, self.has_matrices = matrices + others, bool(matrices)
        self._parts: list[tuple[Optimizer, float]] = []
        if matrices:
            muon = Muon(
                matrices,
                rates.muon,
                weight_decay=0.1,
                momentum=0.95,
                adjust_lr_fn="match_rms_adamw",
            )
            self._parts.append((muon, rates.muon))
        if others:
            adamw = AdamW(others, rates.adamw, betas=(0.9, 0.95), weight_decay=0.01)
            self._parts.append((adamw, rates.adamw))

    def step(self, step: int, progress: float) -> float:
        """Update the parameters and clear the gradients; return the factor of the rates."""
        factor = self.rates.factor(step, progress)
        for optimiser, rate in self._parts:
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
            optimiser.step()
            optimiser.zero_grad()
        return factor

    def clip(self, norm: float) -> float:
        """Clip the gradients to this norm; return the norm that they had."""
        return float(torch.nn.utils.clip_grad_norm_(self.parameters, norm))

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimiser.state_dict() for optimiser, _ in self._parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for (optimiser, _), state in zip(self._parts, states, strict=True):
            optimiser.load_state_dict(state)


def is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """True for the matrix of a layer, which Muon updates; AdamW updates the others.

    Matrices of CTC's frames, stored as one, are among the others: they learn no worse so.
    """
    return parameter.dim() == 2 and not any(part in name for part in EMBEDDING_LIKE)
