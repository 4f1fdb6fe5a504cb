"""Kolmogorov-Smirnov: distance of a sample from a distribution, or from another sample."""

import math

import numpy as np
from jaxtyping import Float

from draftwood_images.continuous.gaussians import Normal

PROJECTIONS = 8


def distance_from_normal(
    sample: Float[np.ndarray, " draws"], mean: float, deviation: float
) -> float:
    """Largest distance of a sample's distribution function from a normal one's."""
    scaled = np.sort((sample - mean) / (deviation * math.sqrt(2)))
    below = (1 + np.array([math.erf(each) for each in scaled.tolist()])) / 2
    places = np.arange(len(sample) + 1) / len(sample)
    return float(max((places[1:] - below).max(), (below - places[:-1]).max()))


def distance_of_samples(
    one: Float[np.ndarray, " draws"], other: Float[np.ndarray, " others"]
) -> float:
    """Largest distance of two samples' distribution functions."""
    both = np.concatenate([one, other])
    shares = (
        np.searchsorted(np.sort(each), both, side="right") / len(each) for each in (one, other)
    )
    return float(np.abs(next(shares) - next(shares)).max())


def kolmogorov_tail(distance: float, draws: float) -> float:
    """Probability that a correct sample is at least this far off.

    By Kolmogorov's series, with the correction of Stephens 1970 for finite samples.

    Args:
        draws: of the sample; of two, their product over their sum.
    """
    root = math.sqrt(draws)
    scaled = (root + 0.12 + 0.11 / root) * distance
    if scaled < 0.2:  # the series needs many terms, and all of it is 1
        return 1.0
    terms = ((-1) ** (n - 1) * math.exp(-2 * (n * scaled) ** 2) for n in range(1, 101))
    return min(1.0, max(0.0, 2 * sum(terms)))


def directions(size: int) -> Float[np.ndarray, "directions size"]:
    """Each coordinate, then fixed random unit vectors, which see coordinates together."""
    drawn = np.random.default_rng(0).standard_normal((PROJECTIONS, size))
    return np.vstack([np.eye(size), drawn / np.linalg.norm(drawn, axis=1, keepdims=True)])


def normal_distance(sample: Float[np.ndarray, "draws size"], wanted: Normal) -> float:
    """Largest distance of a sample from a normal distribution, over all ``directions``."""
    ways = directions(sample.shape[1])
    spreads = np.sqrt(np.einsum("di,ij,dj->d", ways, wanted.covariance, ways))
    return max(
        distance_from_normal(row, float(way @ wanted.mean), float(spread))
        for row, way, spread in zip(ways @ sample.T, ways, spreads, strict=True)
    )


def normal_p_value(sample: Float[np.ndarray, "draws size"], wanted: Normal) -> float:
    """P-value of a sample of vectors: that of the largest distance, by as many tests as it took."""
    tests = len(directions(sample.shape[1]))
    return min(1.0, tests * kolmogorov_tail(normal_distance(sample, wanted), len(sample)))


def samples_distance(
    one: Float[np.ndarray, "draws size"], other: Float[np.ndarray, "others size"]
) -> float:
    """Largest distance of two samples of vectors, over all ``directions``."""
    return max(distance_of_samples(one @ way, other @ way) for way in directions(one.shape[1]))


def samples_p_value(
    one: Float[np.ndarray, "draws size"], other: Float[np.ndarray, "others size"]
) -> float:
    """P-value of two samples of vectors, likewise."""
    draws = len(one) * len(other) / (len(one) + len(other))
    tests = len(directions(one.shape[1]))
    return min(1.0, tests * kolmogorov_tail(samples_distance(one, other), draws))
