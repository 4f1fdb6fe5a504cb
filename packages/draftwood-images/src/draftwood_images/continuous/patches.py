"""A trained model of grey pictures whose tokens are squares of pixels; it runs in NumPy."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from draftwood.storage.atomic import write_file
from draftwood.storage.safetensors import write_arrays
from draftwood_images.continuous.network import PatchSettings, first_weights, states_of, velocities
from draftwood_images.continuous.schedule import Schedule

FORMAT = "draftwood continuous tokens 1"
FILES = {"target": "target.safetensors", "draft": "draft.safetensors"}


@dataclass(frozen=True, eq=False)
class PatchModel:
    """Model of pictures in squares.

    Attributes:
        settings: its sizes.
        weights: by name.
    """

    settings: PatchSettings
    weights: Mapping[str, np.ndarray]

    @property
    def length(self) -> int:
        return self.settings.length

    @property
    def size(self) -> int:
        return self.settings.size

    @property
    def deviations(self) -> Float[np.ndarray, " steps"]:
        return self.schedule.deviations

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule.cosine(self.settings.steps, self.settings.last)

    def states(
        self, tokens: Float[np.ndarray, "pictures tokens size"]
    ) -> Float[np.ndarray, "pictures tokens+1 width"]:
        shifted = np.pad(tokens.astype(np.float32), ((0, 0), (1, 0), (0, 0)))
        return states_of(self.weights, self.settings, shifted, np)

    def means(
        self,
        states: Float[np.ndarray, "rows width"],
        points: Float[np.ndarray, "rows size"],
        steps: Int[np.ndarray, " rows"],
    ) -> Float[np.ndarray, "rows size"]:
        schedule, given = self.schedule, points.astype(np.float32)
        seen = velocities(self.weights, self.settings, states, given, steps, np)
        alpha, sigma = schedule.alpha[steps, None], schedule.sigma[steps, None]
        tokens = np.clip(alpha * points - sigma * seen, -1.0, 1.0)
        return schedule.of_token[steps, None] * tokens + schedule.of_point[steps, None] * points

    def save(self, path: Path) -> None:
        """Write a file, whole or not at all.

        Raises:
            OSError: where the disk refuses.
        """
        told = {"format": FORMAT, "settings": json.dumps(asdict(self.settings))}
        write_file(path, lambda partial: write_arrays(partial, self.weights, told))

    @classmethod
    def load(cls, path: Path) -> "PatchModel":
        """Read such a file.

        Raises:
            ValueError: for a file that holds no whole model.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "numpy") as file:
                told = file.metadata() or {}
                if told.get("format") != FORMAT:
                    raise ValueError("another format")
                settings = PatchSettings(**json.loads(told["settings"]))
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            _require_weights(settings, weights)
            return cls(settings, weights)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise ValueError(
                f"{path} is no model of continuous tokens ({error}); make one with 'draftwood train"
                f" continuous {path.parent} --digits'"
            ) from None


def load_pair(folder: Path) -> tuple[PatchModel, PatchModel]:
    """Read target and draft from a folder.

    Raises:
        ValueError: where one is missing or broken.
    """
    target, draft = (PatchModel.load(folder / name) for name in FILES.values())
    return target, draft


def _require_weights(settings: PatchSettings, weights: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError unless these are finite weights of such sizes."""
    wanted = {name: each.shape for name, each in first_weights(settings, 0).items()}
    if {name: each.shape for name, each in weights.items()} != wanted:
        raise ValueError("weights of other sizes than its settings say")
    if not all(np.isfinite(each).all() for each in weights.values()):
        raise ValueError("weights with NaN or infinity")


def tokens_of(
    pictures: Float[np.ndarray, "pictures pixels pixels"], patch: int
) -> Float[np.ndarray, "pictures length size"]:
    """Cut pictures into squares, row by row."""
    count, pixels, _ = pictures.shape
    edge = pixels // patch
    cut = pictures.reshape(count, edge, patch, edge, patch).swapaxes(2, 3)
    return cut.reshape(count, edge**2, patch**2)


def pictures_of(
    tokens: Float[np.ndarray, "pictures length size"], patch: int
) -> Float[np.ndarray, "pictures pixels pixels"]:
    """Put squares together."""
    count, length, _ = tokens.shape
    edge = round(length**0.5)
    laid = tokens.reshape(count, edge, edge, patch, patch).swapaxes(2, 3)
    return laid.reshape(count, edge * patch, edge * patch)
