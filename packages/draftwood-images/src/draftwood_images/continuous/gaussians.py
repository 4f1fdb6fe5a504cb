"""Linear chains of normal steps, whose pictures have a known distribution."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True, eq=False)
class GaussianChains:
    """Autoregressive Gaussians: each step of a chain pulls towards the token's state.

    The state is ``start + carry @ x`` of the token x before, and ``start`` for the first token. A
    step has the mean ``pull @ point + (1 - pull) @ state``.

    Attributes:
        length: tokens of a picture.
        start: of states.
        carry: of the token before.
        pull: of the point before.
        deviations: of the steps.
    """

    length: int
    start: Float[np.ndarray, " size"]
    carry: Float[np.ndarray, "size size"]
    pull: Float[np.ndarray, "size size"]
    deviations: Float[np.ndarray, " steps"]

    @property
    def size(self) -> int:
        return len(self.start)

    def states(
        self, tokens: Float[np.ndarray, "pictures tokens size"]
    ) -> Float[np.ndarray, "pictures tokens+1 size"]:
        first = np.zeros((len(tokens), 1, self.size))
        return self.start + np.concatenate([first, tokens], axis=1) @ self.carry.T

    def means(
        self,
        states: Float[np.ndarray, "rows size"],
        points: Float[np.ndarray, "rows size"],
        steps: Int[np.ndarray, " rows"],
    ) -> Float[np.ndarray, "rows size"]:
        return states + (points - states) @ self.pull.T

    def distribution(self, last_noise: bool = True) -> "Normal":
        """Distribution of whole pictures, one token after the other in a vector.

        With R for ``pull`` and s_i for the deviations of S steps, a token below state h is normal
        around (1 - R^S) h, with the covariance R^S R^S' + sum over i of s_i^2 R^(S-i) R^(S-i)'.
        Tokens are linear in their noise, with coefficients B^(i-j) for B = (1 - R^S) ``carry``.
        """
        identity = np.eye(self.size)
        powers = [np.linalg.matrix_power(self.pull, n) for n in range(len(self.deviations) + 1)]
        one = powers[-1] @ powers[-1].T
        noisy = self.deviations if last_noise else [*self.deviations[:-1], 0.0]
        for deviation, power in zip(noisy, powers[-2::-1], strict=True):
            one = one + deviation**2 * power @ power.T
        taken = identity - powers[-1]
        step, rows = taken @ self.carry, []
        for i in range(self.length):
            blocks = [
                np.linalg.matrix_power(step, i - j) if j <= i else 0 * identity
                for j in range(self.length)
            ]
            rows.append(np.hstack(blocks))
        linear = np.vstack(rows)
        mean = linear @ np.tile(taken @ self.start, self.length)
        return Normal(mean, linear @ np.kron(np.eye(self.length), one) @ linear.T)


@dataclass(frozen=True, eq=False)
class Normal:
    """A normal distribution of vectors."""

    mean: Float[np.ndarray, " size"]
    covariance: Float[np.ndarray, "size size"]


def gaussian_pair(
    size: int,
    length: int = 4,
    steps: int = 5,
    pull: float = 0.6,
    deviations: tuple[float, float] = (0.8, 0.4),
    spread: float = 1.0,
) -> tuple[GaussianChains, GaussianChains]:
    """A target and a draft of one or two coordinates, near enough that half of all drafts stand.

    Args:
        pull: of points before; the greater it is, the longer noise lasts.
        deviations: of the first step and the last one; they fall in a line.
        spread: of the draft's deviations over the target's.

    Raises:
        ValueError: for another number of coordinates.
    """
    if size not in (1, 2):
        raise ValueError(f"there are Gaussians of 1 and 2 coordinates, {size} were asked for")
    turn = np.array([[0.0, -0.3], [0.3, 0.0]])[:size, :size]
    identity, falling = np.eye(size), np.linspace(*deviations, steps)
    start = np.array([0.5, -0.25])[:size]
    target = GaussianChains(length, start, 0.8 * identity + turn, pull * identity + turn, falling)
    draft = GaussianChains(
        *(length, start - 0.2, 0.65 * identity + turn, target.pull, spread * falling)
    )
    return target, draft
