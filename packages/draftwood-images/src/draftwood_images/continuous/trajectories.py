"""Chains of the target beside drafted ones, all tokens at once."""

import numpy as np
from jaxtyping import Float

from draftwood_images.continuous.model import ContinuousModel


def last_means(
    target: ContinuousModel,
    states: Float[np.ndarray, "pictures tokens features"],
    noise: Float[np.ndarray, "pictures tokens points size"],
) -> Float[np.ndarray, "pictures tokens size"]:
    """Means of the last step of the target's own chains, by given noise of starts and steps."""
    pictures, tokens, _, size = noise.shape
    flat = states.reshape(pictures * tokens, -1)
    points = noise[:, :, 0].reshape(-1, size)
    means = points
    for step, deviation in enumerate(target.deviations):
        means = target.means(flat, points, np.full(len(flat), step))
        points = means + deviation * noise[:, :, step + 1].reshape(-1, size)
    return means.reshape(pictures, tokens, size)
