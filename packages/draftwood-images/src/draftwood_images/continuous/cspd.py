"""Continuous Speculative Decoding, by the formulas of its paper."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float

from draftwood_images.continuous.chance import Chance
from draftwood_images.continuous.model import ContinuousModel
from draftwood_images.continuous.rule import (
    ContinuousDrafts,
    ContinuousRule,
    DraftVerdict,
    first_failing,
)
from draftwood_images.continuous.trajectories import last_means

TRIES = 100
"""Draws from the target's last step, of which one is to be the residual's."""


@dataclass(frozen=True)
class Cspd(ContinuousRule):
    """A drafted token stands by the densities of the last steps.

    Published by Wang et al. 2024, arXiv:2411.11925. The target takes its own steps with the draft's
    starting and step noise. A token x stands with probability min(1, Z N(x; p) / N(x; q)): means
    and deviations are those of both last steps, and Z is the product over earlier steps of the
    draft's deviations over the target's, one factor a coordinate. In the place of a token that
    fails comes a draw from max(0, Z N(x; p) - N(x; q)): one of ``TRIES`` from the target's last
    step, or the last of these where none will do. The first tokens are the target's.

    With equal deviations Z is 1. Given the shared noise this is rejection sampling of the last
    step, so that only the bound on tries changes the distribution. With others Z changes it: given
    the noise earlier steps are not chance any more, and nothing is to be weighed.

    Differs from the paper: tokens come in raster order, a first failing token ends the draft, and
    where all stand the target draws one more.

    Attributes:
        factor: widens both deviations where a token is judged.
        shared: with False the target's chains have noise of their own.
    """

    name: ClassVar[str] = "cspd"
    summary: ClassVar[str] = "densities of the last denoising steps decide, by shared noise"
    source: ClassVar[str] = "Wang et al. 2024, arXiv:2411.11925"
    promise: ClassVar[Literal["lossless", "trades quality"]] = "trades quality"
    factor: float = 1.0
    shared: bool = True
    last_noise: bool = True
    prefill: float = 0.05

    def head_passes(self, steps: int) -> int:
        return steps

    def require(self, target: ContinuousModel, draft: ContinuousModel) -> None:
        for role, model in (("target", target), ("draft model", draft)):
            if not (model.deviations > 0).all():
                raise ValueError(
                    f"{self.name} compares densities, which a step without noise has not; give the"
                    f" {role} a deviation above 0 in each step"
                )

    def judge(
        self,
        target: ContinuousModel,
        states: Float[np.ndarray, "pictures tokens features"],
        drafts: ContinuousDrafts,
        chance: Chance,
    ) -> DraftVerdict:
        tokens, size = drafts.tokens.shape[1:]
        steps = len(target.deviations)
        noise = drafts.noise if self.shared else chance.normal(tokens, steps + 1, size)
        own, other = target.deviations, drafts.deviations
        densities = LastDensities(
            last_means(target, states, noise),
            drafts.means[:, :, -1],
            *(float(own[-1]), float(other[-1]), float(np.log(other[:-1] / own[:-1]).sum())),
        )
        ratios = densities.log_ratio(drafts.tokens, self.factor)
        kept = first_failing(chance.uniform(tokens) >= np.exp(np.minimum(ratios, 0.0)))
        points, failed = drafts.tokens[:, -1].copy(), np.flatnonzero(kept < tokens)
        if failed.size:
            points[failed] = self.residual(densities.at(failed, kept[failed]), chance.of(failed))
        return DraftVerdict(kept, points, np.full(len(points), steps))

    def residual(
        self, densities: "LastDensities", chance: Chance
    ) -> Float[np.ndarray, "pictures size"]:
        """Draw what stands in the place of failing tokens."""
        size = densities.target_means.shape[-1]
        tries = densities.target_means + densities.target * chance.normal(TRIES, size)
        chances = -np.expm1(-densities.log_ratio(tries))  # below 0 where the draft is likelier
        good = chance.uniform(TRIES) < chances
        return tries[np.arange(len(tries)), np.minimum(first_failing(good), TRIES - 1)]


@dataclass(frozen=True, eq=False)
class LastDensities:
    """Normal densities of both models' last steps.

    Attributes:
        target_means: of the target.
        draft_means: of the draft.
        target: deviation of the target.
        draft: deviation of the draft model.
        log_earlier: logarithm of the factor for earlier steps, for one coordinate.
    """

    target_means: Float[np.ndarray, "pictures tokens size"]
    draft_means: Float[np.ndarray, "pictures tokens size"]
    target: float
    draft: float
    log_earlier: float

    def at(self, pictures: np.ndarray, tokens: np.ndarray) -> "LastDensities":
        """Densities of one token in some pictures: [pictures 1 size]."""
        own, other = (
            each[pictures, tokens, None] for each in (self.target_means, self.draft_means)
        )
        return replace(self, target_means=own, draft_means=other)

    def log_ratio(
        self, points: Float[np.ndarray, "pictures points size"], factor: float = 1.0
    ) -> Float[np.ndarray, "pictures points"]:
        """Logarithm of the target's density over the draft's, with what earlier steps add."""
        own = ((points - self.target_means) / (self.target * factor)) ** 2
        other = ((points - self.draft_means) / (self.draft * factor)) ** 2
        norms = self.log_earlier + np.log(self.draft / self.target)
        return ((other - own) / 2 + norms).sum(-1)
