"""Aligned chains: shared noise in all steps, of which the last one is reflected."""

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
from draftwood_images.continuous.trajectories import last_means


@dataclass(frozen=True)
class Aligned(ContinuousRule):
    """The target takes its own steps with the draft's noise, and the last ones are coupled.

    It joins the shared noise of CSpD (Wang et al. 2024, arXiv:2411.11925) with the reflection of
    De Bortoli et al. 2025, arXiv:2501.05370; no paper has this form.

    The target's chain for a drafted token has the draft's noise in all steps but the last one. That
    noise is standard normal and no decision has seen it, so the chain is one of the target's own.
    Given it, both last steps are normal, with means q and p and one deviation: they are coupled as
    ``Reflected`` does it, by noise that is independent of all before. So the token is the target's,
    and equals the drafted one unless the coupling fails. Then it is finished at once, and what was
    drafted behind it is forgotten.

    Only the last step can fail, where ``Reflected`` has as many as there are. The price: the head
    takes its steps one after the other, for all drafted tokens at once.
    """

    name: ClassVar[str] = "aligned"
    summary: ClassVar[str] = "the target's own chains by the draft's noise, the last step reflected"
    source: ClassVar[str] = "after arXiv:2411.11925 and arXiv:2501.05370"
    promise: ClassVar[Literal["lossless", "trades quality"]] = "lossless"

    def head_passes(self, steps: int) -> int:
        return steps

    def require(self, target: ContinuousModel, draft: ContinuousModel) -> None:
        require_noise(target, draft, self.name, first=-1)

    def judge(
        self,
        target: ContinuousModel,
        states: Float[np.ndarray, "pictures tokens features"],
        drafts: ContinuousDrafts,
        chance: Chance,
    ) -> DraftVerdict:
        means, draft_means = last_means(target, states, drafts.noise), drafts.means[:, :, -1]
        pictures, tokens, _ = means.shape
        deviation = target.deviations[-1:]
        ratios = log_density_ratio(drafts.tokens, means, draft_means, deviation)
        failed = chance.uniform(tokens) >= np.exp(np.minimum(ratios, 0.0))
        kept = first_failing(failed)
        at = np.arange(pictures), np.minimum(kept, tokens - 1)
        points = reflected_points(
            drafts.noise[:, :, -1][at], means[at], draft_means[at], deviation[:, None]
        )
        return DraftVerdict(kept, points, np.full(pictures, len(target.deviations)))
