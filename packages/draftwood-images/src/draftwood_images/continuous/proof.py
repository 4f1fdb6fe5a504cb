"""Checks of continuous tokens, which need no trained model: Gaussians of a known distribution.

Whole pictures are looked at, each coordinate and some projections, by Kolmogorov-Smirnov. Wrong
forms must be caught, or the comparison proves nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from jaxtyping import Float

from draftwood.testing.promises import SIGNIFICANCE, Check, CheckResult
from draftwood_images.continuous.aligned import Aligned
from draftwood_images.continuous.chance import Chance
from draftwood_images.continuous.cspd import Cspd, LastDensities
from draftwood_images.continuous.gaussians import gaussian_pair
from draftwood_images.continuous.kolmogorov import normal_p_value, samples_p_value
from draftwood_images.continuous.loop import ContinuousDrawing, draw, draw_plainly
from draftwood_images.continuous.reflected import Reflected
from draftwood_images.continuous.rule import ContinuousRule

DRAWS = 20_000
PLAIN_SEEDS = 1_000_000
"""First seed of pictures by the target alone."""


@dataclass(frozen=True)
class Unreflected(Reflected):
    """A wrong rule: where a step fails, the target's own is drawn, not what is left of it."""

    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def elsewhere(
        self, noise: np.ndarray, means: np.ndarray, draft_means: np.ndarray, deviations: np.ndarray
    ) -> np.ndarray:
        return means + deviations * self.generator.standard_normal(noise.shape)


class WithoutResidual(Cspd):
    """A wrong rule: where a token fails, the target's last step is drawn, not the residual."""

    def residual(self, densities: LastDensities, chance: Chance) -> np.ndarray:
        means = densities.target_means[:, 0]
        return means + densities.target * chance.normal(means.shape[-1])


class KeepingDrawing(ContinuousDrawing):
    """A wrong loop: tokens drafted behind one that failed stay."""

    def commit(self, going: np.ndarray, kept: np.ndarray, token: np.ndarray) -> None:
        end = self.done[going] + self.block
        super().commit(going, kept, token)
        self.done[going] = np.maximum(end, self.done[going])


def sample(size: int, rule: ContinuousRule, draws: int = DRAWS) -> Float[np.ndarray, "draws all"]:
    """Pictures of Gaussians, drafted."""
    target, draft = gaussian_pair(size)
    return draw(target, draft, rule, range(draws)).tokens.reshape(draws, -1)


def keeping_sample(size: int, draws: int = DRAWS) -> Float[np.ndarray, "draws all"]:
    """Draw pictures by the loop that keeps what it should forget."""
    target, draft = gaussian_pair(size)
    drawing = KeepingDrawing(target, draft, Reflected(), Chance.of_seeds(range(draws)), draws, 4)
    while drawing.going.size:
        drawing.advance()
    return drawing.drawn.tokens.reshape(draws, -1)


def known_p_value(size: int, drawn: Float[np.ndarray, "draws all"]) -> float:
    """P-value of pictures under the target's distribution in closed form."""
    return normal_p_value(drawn, gaussian_pair(size)[0].distribution())


def plain_p_value(size: int, drawn: Float[np.ndarray, "draws all"]) -> float:
    """P-value of pictures beside as many that the target drew alone."""
    seeds = range(PLAIN_SEEDS, PLAIN_SEEDS + len(drawn))
    plain = draw_plainly(gaussian_pair(size)[0], seeds).tokens
    return samples_p_value(drawn, plain.reshape(len(drawn), -1))


def _check(size: int, rule: ContinuousRule) -> CheckResult:
    drawn = sample(size, rule)
    found = min(known_p_value(size, drawn), plain_p_value(size, drawn))
    told = "Kolmogorov-Smirnov, against the closed form and the target alone"
    return CheckResult("law", _name(rule, size), found >= SIGNIFICANCE, told, found)


def _check_control(name: str, drawn: Callable[[int], np.ndarray]) -> CheckResult:
    found = max(known_p_value(size, drawn(size)) for size in (1, 2))
    caught = found < SIGNIFICANCE
    told = "caught, as it must be" if caught else "not caught"
    return CheckResult("control", name, caught, told, found)


def _name(rule: ContinuousRule, size: int) -> str:
    return f"{rule.name}, Gaussians of {size} coordinate{'s' * (size > 1)}"


WRONG: dict[str, Callable[[int], np.ndarray]] = {
    "a failed step drawn from the whole": lambda size: sample(size, Unreflected()),
    "a failed token drawn from the whole": lambda size: sample(size, WithoutResidual(prefill=0.0)),
    "densities 42 times as wide": lambda size: sample(size, Cspd(factor=42.0, prefill=0.0)),
    "tokens kept behind a failed one": keeping_sample,
}
"""Pictures by wrong forms."""

CHECKS: dict[str, Check] = {
    **{
        _name(rule, size): partial(_check, size, rule)
        for rule in (Reflected(), Aligned())
        for size in (1, 2)
    },
    **{name: partial(_check_control, name, drawn) for name, drawn in WRONG.items()},
}
"""By what each checks."""
