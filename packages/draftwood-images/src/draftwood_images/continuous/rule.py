"""Methods: which drafted tokens stand, and from where the target goes on."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from draftwood_images.continuous.chance import Chance
from draftwood_images.continuous.model import ContinuousModel


@dataclass(frozen=True, eq=False)
class ContinuousDrafts:
    """Drafted tokens of pictures, and their chains.

    Attributes:
        noise: of the first points, then of each step.
        points: of the chains; the last ones are the tokens.
        means: of each step.
        deviations: of each step.
    """

    noise: Float[np.ndarray, "pictures tokens points size"]
    points: Float[np.ndarray, "pictures tokens points size"]
    means: Float[np.ndarray, "pictures tokens steps size"]
    deviations: Float[np.ndarray, " steps"]

    @property
    def tokens(self) -> Float[np.ndarray, "pictures tokens size"]:
        return self.points[:, :, -1]


@dataclass(frozen=True, eq=False)
class DraftVerdict:
    """Outcome of a draft, by picture.

    Attributes:
        kept: drafted tokens that stand.
        points: in the chain of the token behind them, from which the target goes on. Nobody reads
            them where all drafted tokens stand.
        steps: that this chain is through with.
    """

    kept: Int[np.ndarray, " pictures"]
    points: Float[np.ndarray, "pictures size"]
    steps: Int[np.ndarray, " pictures"]


class ContinuousRule(ABC):
    """A method of drawing continuous tokens.

    Attributes:
        last_noise: True if draft and target draw the noise of the last step.
        prefill: share of a picture's tokens that the target draws first, undrafted.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    promise: ClassVar[Literal["lossless", "trades quality"]]
    last_noise: bool = True
    prefill: float = 0.0

    @abstractmethod
    def head_passes(self, steps: int) -> int:
        """Passes of the target's diffusion head, one after the other, that a verdict takes."""

    @abstractmethod
    def require(self, target: ContinuousModel, draft: ContinuousModel) -> None:
        """Raise ValueError for models that the method cannot take."""

    @abstractmethod
    def judge(
        self,
        target: ContinuousModel,
        states: Float[np.ndarray, "pictures tokens features"],
        drafts: ContinuousDrafts,
        chance: Chance,
    ) -> DraftVerdict:
        """Judge drafted tokens.

        Args:
            states: of the target, from which it would draw the token at each drafted one's place,
                given the drafted tokens before it.
        """


def first_failing(failed: Bool[np.ndarray, "pictures tests"]) -> Int[np.ndarray, " pictures"]:
    """Number of each picture's first failing test; the number of tests where none fails."""
    return np.where(failed.any(-1), failed.argmax(-1), failed.shape[-1])


def log_density_ratio(
    points: Float[np.ndarray, "*rows size"],
    target_means: Float[np.ndarray, "*rows size"],
    draft_means: Float[np.ndarray, "*rows size"],
    deviations: Float[np.ndarray, "..."],
) -> Float[np.ndarray, "*rows"]:
    """Logarithm of N(x; m_p) / N(x; m_q) for one deviation, which broadcasts against the rows."""
    near = ((points - target_means) ** 2).sum(-1)
    far = ((points - draft_means) ** 2).sum(-1)
    return (far - near) / (2 * deviations**2)


def reflected_points(
    noise: Float[np.ndarray, "rows size"],
    target_means: Float[np.ndarray, "rows size"],
    draft_means: Float[np.ndarray, "rows size"],
    deviations: Float[np.ndarray, "#rows 1"],
) -> Float[np.ndarray, "rows size"]:
    """Points around the target's means, with noise reflected along the way between both means."""
    ways = target_means - draft_means
    lengths = (ways**2).sum(-1, keepdims=True)
    along = (noise * ways).sum(-1, keepdims=True) / np.where(lengths > 0, lengths, 1.0)
    return target_means + deviations * (noise - 2 * along * ways)
