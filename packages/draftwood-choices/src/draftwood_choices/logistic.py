"""Logistic regression: weights by Newton's method, and how well they rank."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

ROUNDS = 50


def fitted(
    values: Float[np.ndarray, "rows features"],
    labels: Float[np.ndarray, " rows"],
    ridge: float,
    balanced: bool = False,
) -> tuple[Float[np.ndarray, " features"], float]:
    """Fit weights and a bias to labels from 0 to 1, by Newton's method on standardised features.

    Args:
        ridge: times half of the weights' squares is added to the loss, summed over rows.
        balanced: let both outcomes weigh the same, however rare one is; the scores are no
            probabilities then.
    """
    mean, spread = values.mean(0), values.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    rows = np.column_stack([(values - mean) / spread, np.ones(len(values))])
    share = labels.mean()
    importance = np.ones(len(labels))
    if balanced:
        importance = np.where(labels > 0, 0.5 / share, 0.5 / (1 - share))
    penalty = np.append(np.full(values.shape[1], ridge), 0.0)
    found = np.zeros(rows.shape[1])
    for _ in range(ROUNDS):
        chances = probabilities(rows @ found)
        slope = rows.T @ (importance * (labels - chances)) - penalty * found
        curve = (rows.T * (importance * chances * (1 - chances))) @ rows + np.diag(penalty)
        step = np.linalg.solve(curve, slope)
        found += step
        if np.abs(step).max() < 1e-9:
            break
    weights = found[:-1] / spread
    return weights, float(found[-1] - weights @ mean)


def probabilities(scores: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
    """Turn log-odds into probabilities."""
    return 1.0 / (1.0 + np.exp(-np.clip(scores, -700.0, 700.0)))


def auc(scores: Sequence[float], labels: Sequence[bool]) -> float | None:
    """Probability that a row whose label is true ranks before one whose label is not.

    None where there are not both.
    """
    values, better = np.asarray(scores, np.float64), np.asarray(labels, bool)
    if not better.any() or better.all():
        return None
    over = values[better][:, None] - values[~better][None]
    return float((over > 0).mean() + (over == 0).mean() / 2)
