"""Training of continuous models, in PyTorch."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from draftwood.optional import install_command
from draftwood_images.continuous.network import PatchSettings, first_weights, states_of, velocities
from draftwood_images.continuous.patches import PatchModel
from draftwood_images.continuous.schedule import Schedule

BATCH, NOISES, RATE, WARMUP = 64, 2, 3e-3, 50
"""Pictures of an update, noisy points of a token, greatest step size and when it is reached."""
GREY, PIXELS = 16, 8
"""Brightest level of scikit-learn's digits, and their edge."""
BLUR = 0.2
"""Greatest deviation of noise on the tokens before, as drawn tokens have some."""
HELD_OUT = 10
"""One picture of so many is not learnt from."""


@dataclass(frozen=True)
class Lesson:
    """Training of one network.

    Attributes:
        settings: its sizes.
        updates: of its weights.
        seed: of weights, batches and noise.
    """

    settings: PatchSettings
    updates: int
    seed: int = 0


def lessons(patch: int, updates: int, seed: int) -> dict[str, Lesson]:
    """Lessons of a target of four layers and of a draft of two, half as wide, on digits.

    Args:
        patch: edge of a token's square.
    """
    edge = PIXELS // patch
    small = PatchSettings(patch, edge, width=32, layers=2, head_width=32, head_layers=2)
    return {
        "target": Lesson(PatchSettings(patch, edge), updates, seed),
        "draft": Lesson(small, updates, seed + 1),
    }


def digits() -> Float[np.ndarray, "pictures 8 8"]:
    """Scikit-learn's handwritten digits, grey from -1 to 1.

    Raises:
        ModuleNotFoundError: without scikit-learn.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the digits are scikit-learn's: {install_command('draftwood-images[train]')}",
            name=error.name,
        ) from None
    return np.asarray(load_digits().images, np.float32) / (GREY / 2) - 1  # type: ignore[union-attr]


def split(pictures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pictures to learn from, and those that are held out."""
    held = np.arange(len(pictures)) % HELD_OUT == 0
    return pictures[~held], pictures[held]


def train(
    lesson: Lesson,
    tokens: Float[np.ndarray, "pictures length size"],
    teacher: PatchModel | None = None,
    report: Callable[[int, int], None] = lambda done, updates: None,
) -> PatchModel:
    """Train a network to denoise tokens given those before.

    Args:
        tokens: of pictures.
        teacher: whose answers are learnt in the place of the tokens', so that a draft moves as its
            target does.
        report: is told how many updates are done, and of how many.
    """
    import torch

    chance = torch.Generator().manual_seed(lesson.seed)
    first = first_weights(lesson.settings, lesson.seed)
    weights = {name: torch.tensor(each, requires_grad=True) for name, each in first.items()}
    taught = None if teacher is None else _tensors(teacher)
    optimiser = torch.optim.AdamW(weights.values(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    data = torch.tensor(np.asarray(tokens, np.float32))
    for update in range(lesson.updates):
        for group in optimiser.param_groups:
            group["lr"] = RATE * _rate(update, lesson.updates)
        chosen = data[torch.randint(len(data), (BATCH,), generator=chance)]
        loss = _loss(lesson.settings, weights, chosen, taught, chance)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimiser.step()
        report(update + 1, lesson.updates)
    return PatchModel(
        lesson.settings, {name: each.detach().numpy() for name, each in weights.items()}
    )


def held_out_loss(model: PatchModel, tokens: Float[np.ndarray, "pictures length size"]) -> float:
    """Mean squared error of a model's velocities on pictures, with fixed noise."""
    import torch

    chance = torch.Generator().manual_seed(0)
    given = torch.tensor(np.asarray(tokens, np.float32))
    with torch.no_grad():
        return float(_loss(model.settings, _tensors(model)[1], given, None, chance))


Taught = tuple[PatchSettings, Mapping[str, Any]]


def _tensors(model: PatchModel) -> Taught:
    import torch

    return model.settings, {name: torch.tensor(each) for name, each in model.weights.items()}


def _rate(update: int, updates: int) -> float:
    """Share of the greatest step size: up in a line, down in a cosine."""
    warm = min(1.0, (update + 1) / WARMUP)
    return warm * (0.02 + 0.98 * (1 + math.cos(math.pi * update / updates)) / 2)


def _loss(
    settings: PatchSettings,
    weights: Mapping[str, Any],
    tokens: Any,
    taught: Taught | None,
    chance: Any,
) -> Any:
    """Mean squared error of velocities at noisy points of all tokens of some pictures."""
    import torch

    schedule = Schedule.cosine(settings.steps, settings.last)
    blurs = BLUR * torch.rand((len(tokens), 1, 1), generator=chance)
    before = tokens + blurs * torch.randn(tokens.shape, generator=chance)
    shifted = torch.nn.functional.pad(before, (0, 0, 1, 0))[:, :-1]
    many = tokens.reshape(-1, settings.size).repeat(NOISES, 1)
    steps = torch.randint(settings.steps, (len(many),), generator=chance)
    noise = torch.randn(many.shape, generator=chance)
    alpha, sigma = (
        torch.tensor(each.astype(np.float32))[steps, None]
        for each in (schedule.alpha, schedule.sigma)
    )
    points, wanted = alpha * many + sigma * noise, alpha * noise - sigma * many

    def seen(of: PatchSettings, by: Mapping[str, Any]) -> Any:
        states = states_of(by, of, shifted, torch).reshape(-1, of.width).repeat(NOISES, 1)
        return velocities(by, of, states, points, steps, torch)

    if taught is not None:
        with torch.no_grad():
            wanted = seen(*taught)
    return ((seen(settings, weights) - wanted) ** 2).mean()
