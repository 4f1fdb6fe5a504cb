"""Reflected denoising steps: drafted continuous tokens that leave the distribution as it is."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float

from draftwood_images.continuous.chance import Chance
from draftwood_images.continuous.model import ContinuousModel, require_noise
from draftwood_images.continuous.rule import (
    ContinuousDrafts,
    ContinuousRule,
    DraftVerdict,
    first_failing,
    log_density_ratio,
    reflected_points,
)


@dataclass(frozen=True)
class Reflected(ContinuousRule):
    """Each denoising step of a drafted token is coupled with the target's own by reflection.

    Published for one chain by De Bortoli et al. 2025, arXiv:2501.05370. Here chains follow each
    other, each below the state of the tokens before.

    One step. Both models stand at the same point, with means q and p and one deviation s. The draft
    moves to x = q + s e, where e is standard normal. The target moves there too with probability
    min(1, N(x; p) / N(x; q)), else to y = p + s (e - 2 <e, u> u), u being the unit vector along
    p - q. Then it moves by its own normal distribution: across u both moves have the noise e. Along
    u let d be the distance of the means over s, and r(a) the density of a standard normal number.
    Noise a fails with density max(0, r(a) - r(a - d)), and lands at -a seen from p. Seen from there
    x lands at b = a - d with density min(r(b), r(b + d)). At b both together have
    min(r(b), r(b + d)) + max(0, r(-b) - r(-b - d)) = r(b), as r is even.

    A token. While steps couple, the target's chain is the draft's, so its means at all drafted
    points, below the states of all drafted tokens, are those it needs: one pass of the transformer,
    one of the head. Both are used as far as the first step that fails and no farther: there the
    target's point is y, it takes the steps that are left with fresh noise, and its token is another
    than the drafted one. Tokens behind were drafted, and states computed, below the wrong token:
    both are forgotten. Decisions up to there saw nothing of later noise, so what comes next is
    drawn as if nothing had been drafted. Where all couple, one more token is the target's alone.

    Both models need equal deviations, and noise in each step, the last one too.
    """

    name: ClassVar[str] = "reflected"
    summary: ClassVar[str] = (
        "each denoising step is coupled by reflection, the first that fails ends it"
    )
    source: ClassVar[str] = "De Bortoli et al. 2025, arXiv:2501.05370"
    promise: ClassVar[Literal["lossless", "trades quality"]] = "lossless"

    def head_passes(self, steps: int) -> int:
        return 1

    def require(self, target: ContinuousModel, draft: ContinuousModel) -> None:
        require_noise(target, draft, self.name)

    def judge(
        self,
        target: ContinuousModel,
        states: Float[np.ndarray, "pictures tokens features"],
        drafts: ContinuousDrafts,
        chance: Chance,
    ) -> DraftVerdict:
        means = means_at(target, states, drafts)
        pictures, tokens, steps, _ = means.shape
        ratios = log_density_ratio(drafts.points[:, :, 1:], means, drafts.means, target.deviations)
        failed = chance.uniform(tokens, steps) >= np.exp(np.minimum(ratios, 0.0))
        first = first_failing(failed.reshape(pictures, -1))
        token, step = np.divmod(np.minimum(first, tokens * steps - 1), steps)
        at = np.arange(pictures), token, step
        points = self.elsewhere(
            drafts.noise[:, :, 1:][at], means[at], drafts.means[at], target.deviations[step, None]
        )
        return DraftVerdict(first // steps, points, step + 1)

    def elsewhere(
        self, noise: np.ndarray, means: np.ndarray, draft_means: np.ndarray, deviations: np.ndarray
    ) -> Float[np.ndarray, "pictures size"]:
        """Points of the target where a step fails."""
        return reflected_points(noise, means, draft_means, deviations)


def means_at(
    target: ContinuousModel,
    states: Float[np.ndarray, "pictures tokens features"],
    drafts: ContinuousDrafts,
) -> Float[np.ndarray, "pictures tokens steps size"]:
    """Means of the target behind all drafted points, in one pass."""
    before = drafts.points[:, :, :-1]
    pictures, tokens, steps, size = before.shape
    repeated = np.repeat(states, steps, axis=1).reshape(pictures * tokens * steps, -1)
    numbers = np.tile(np.arange(steps), pictures * tokens)
    return target.means(repeated, before.reshape(-1, size), numbers).reshape(before.shape)
