"""State of a training, in one file that is written whole or not at all."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.storage.atomic import explain_write_errors, write_file

NAME = "checkpoint.pt"
OPTIONS = {
    "muon": "--learning-rate",
    "adamw": "--other-rate",
    "warm_up": "--warm-up",
    "decay": "--decay",
    "loss_name": "the loss",
}
"""Names of settings for whoever gives options."""
GO_ON = "name another output; the same command with --resume goes on after the newest checkpoint"


@dataclass
class Checkpoint:
    """Everything that a training needs to resume exactly.

    Attributes:
        settings: of the training and its recipe, which must be the same to resume.
        head: weights of the drafter.
        optimisers: their state.
        random: states of the random generators.
        step: steps that are done.
        tokens: read so far.
        seconds: spent so far.
        best: largest held-out block efficiency so far; 0 before the first one.
        best_head: the weights that had it.
        best_step: step of these weights.
        since_best: evaluations since then.
        judged_at: seconds at the newest evaluation.
        history: a row of figures per evaluation.
        averaged: mean of the weights over the last steps, once it has begun.
        averaged_steps: steps in it.
    """

    settings: dict[str, Any]
    head: dict[str, Tensor]
    optimisers: list[dict[str, Any]]
    random: dict[str, Any]
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float = -math.inf
    best_head: dict[str, Tensor] = field(default_factory=dict)
    best_step: int = 0
    since_best: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    judged_at: float = 0.0
    averaged: dict[str, Tensor] = field(default_factory=dict)
    averaged_steps: int = 0

    def write(self, folder: Path) -> None:
        """Write the checkpoint to a folder, in place of the previous one.

        Raises:
            OSError: if the disk refuses; the previous one is kept.
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        packed = BytesIO()  # torch.save hides why a disk refuses
        torch.save(values, packed)
        content = packed.getbuffer()
        write_file(
            folder / NAME,
            lambda partial: partial.write_bytes(content),
            lambda path: explain_write_errors(path, GO_ON),
        )

    @classmethod
    def read(cls, folder: Path) -> "Checkpoint":
        """Read the checkpoint in a folder.

        Raises:
            FileNotFoundError: where there is none.
            ValueError: where it is damaged.
        """
        path = folder / NAME
        if not path.is_file():
            raise FileNotFoundError(
                f"there is no {path} to resume from; train first, without --resume"
            )
        try:
            return cls(**torch.load(path, map_location="cpu", weights_only=True))
        except Exception as error:
            raise ValueError(
                f"{path} cannot be read ({type(error).__name__}); delete it and train anew"
            ) from None

    def require(self, settings: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
        """Raise ValueError unless these are the settings of the training, naming what differs.

        Args:
            usual: of settings that were not there yet when the training began.
        """
        asked, kept = _as_options(settings), _as_options(self.settings)
        own = {**_as_options(usual), **kept}
        wrong = sorted(name for name in {*asked, *kept} if asked.get(name) != own.get(name))
        if wrong:  # another recipe has other settings too
            one = "recipe" if "recipe" in wrong else wrong[0]
            raise ValueError(
                f"the training to resume had {one} {own.get(one)}, not"
                f" {asked.get(one)}; give it the same settings, or train into another folder"
            )


def _as_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as options tell them: each rate by its name, unit and amount in one."""
    found: dict[str, Any] = {**settings, **settings.get("rates", {})}
    found.pop("rates", None)
    if {"unit", "amount"} <= found.keys():
        unit = found.pop("unit").replace("_", "-")
        found["the length"] = f"--{unit} {float(found.pop('amount')):.12g}"
    return {OPTIONS.get(name, name): each for name, each in found.items()}


def copied(head: nn.Module) -> dict[str, Tensor]:
    """Copy the weights of a head to the CPU."""
    return {name: weight.detach().cpu().clone() for name, weight in head.state_dict().items()}


def random_states() -> dict[str, Any]:
    """States of PyTorch's generators."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": devices}


def restore_random(states: Mapping[str, Any]) -> None:
    """Restore the states of PyTorch's generators on the devices that exist."""
    torch.set_rng_state(states["cpu"])
    if states["cuda"] and torch.cuda.device_count() == len(states["cuda"]):
        torch.cuda.set_rng_state_all(states["cuda"])
