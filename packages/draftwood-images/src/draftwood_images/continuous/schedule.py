"""Noise of a denoising chain: cosine schedule, posterior means, fixed deviations."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

OFFSET, GREATEST = 0.008, 0.999


@dataclass(frozen=True, eq=False)
class Schedule:
    """Coefficients of each step, the noisiest first.

    Nichol and Dhariwal 2021, arXiv:2102.09672, for the share of noise; Ho et al. 2020,
    arXiv:2006.11239, for means and deviations. Their last step has no noise; here it keeps some.

    Attributes:
        alpha: of the token in the point before a step.
        sigma: of the noise there.
        of_token: of the token in the step's mean.
        of_point: of the point in it.
        deviations: of the steps.
    """

    alpha: Float[np.ndarray, " steps"]
    sigma: Float[np.ndarray, " steps"]
    of_token: Float[np.ndarray, " steps"]
    of_point: Float[np.ndarray, " steps"]
    deviations: Float[np.ndarray, " steps"]

    @classmethod
    def cosine(cls, steps: int, last: float) -> "Schedule":
        """Make one of so many steps, none of which has a smaller deviation than ``last``."""
        times = (np.arange(steps + 1) / steps + OFFSET) / (1 + OFFSET) * np.pi / 2
        kept = np.cos(times) ** 2
        betas = np.minimum(1 - kept[1:] / kept[:-1], GREATEST)
        level = np.cumprod(1 - betas)[::-1]
        cleaner, betas = np.append(level[1:], 1.0), betas[::-1]
        noise = betas * (1 - cleaner) / (1 - level)
        return cls(
            np.sqrt(level),
            np.sqrt(1 - level),
            np.sqrt(cleaner) * betas / (1 - level),
            np.sqrt(1 - betas) * (1 - cleaner) / (1 - level),
            np.maximum(np.sqrt(noise), last),
        )
