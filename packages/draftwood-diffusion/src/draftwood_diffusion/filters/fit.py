"""A filter is fitted to examples by Adam, all examples at once."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from draftwood_diffusion.filters.examples import Examples
from draftwood_diffusion.rules.learned import Filter

RATE, FIRST_DECAY, SECOND_DECAY, TINY, WEIGHT_DECAY = 3e-3, 0.9, 0.999, 1e-8, 1e-2
"""AdamW as the authors of Learn2PD run it (2025, arXiv:2509.25188)."""
HELD_OUT = 0.1  # of the examples


@dataclass(frozen=True)
class Fitted:
    """A filter and how it does on examples that it did not learn from.

    Attributes:
        network: the filter.
        loss: cross-entropy of a place, in nats.
        right: share of the places above the rule's threshold whose prediction stays.
        found: share of the places whose prediction stays that are above it.
    """

    network: Filter
    loss: float
    right: float
    found: float


def fit(
    examples: Examples,
    hidden: int,
    epochs: int,
    seed: int,
    above: float = 0.96,
    told: Callable[[int], None] = lambda epoch: None,
) -> Fitted:
    """Fit a filter.

    Args:
        examples: of blocks; a tenth is held out.
        hidden: units between the layers; how many the authors have is not known to us.
        epochs: passes over all examples.
        seed: of the beginning and of what is held out.
        above: threshold that the result is told for.
        told: called after each epoch.

    Raises:
        ValueError: for fewer than 10 examples.
    """
    if len(examples) < 10:
        raise ValueError(
            f"a filter needs at least 10 passes to learn from, got {len(examples)}; give more"
            " prompts or longer texts"
        )
    draw = np.random.default_rng(seed % (1 << 64))
    order = draw.permutation(len(examples))
    held = max(1, int(len(examples) * HELD_OUT))
    learnt, tested = examples.of(order[held:]), examples.of(order[:held])
    weights = _begin(examples.confidence.shape[1], hidden, draw)
    means = [[np.zeros_like(each) for each in weights] for _ in range(2)]
    for epoch in range(1, epochs + 1):
        slopes = slopes_of(Filter(*weights), learnt)
        for place, slope in enumerate(slopes):
            first, second = (each[place] for each in means)
            first += (1 - FIRST_DECAY) * (slope - first)
            second += (1 - SECOND_DECAY) * (slope**2 - second)
            step = first / (1 - FIRST_DECAY**epoch)
            size = np.sqrt(second / (1 - SECOND_DECAY**epoch)) + TINY
            weights[place] = weights[place] * (1 - RATE * WEIGHT_DECAY) - RATE * step / size
        told(epoch)
    return judged(Filter(*weights), tested, above)


def _begin(places: int, hidden: int, draw: np.random.Generator) -> list[np.ndarray]:
    """Weights to begin with."""
    first = draw.normal(size=(places, hidden)) * np.sqrt(2.0 / places)
    second = draw.normal(size=(hidden, places)) * np.sqrt(1.0 / hidden)
    return [first, np.zeros(hidden), second, np.zeros(places)]


def slopes_of(network: Filter, examples: Examples) -> list[np.ndarray]:
    """Slopes of the mean cross-entropy by each array of a filter, in the order of its fields."""
    before = examples.confidence @ network.first + network.first_bias
    inner = np.maximum(before, 0.0)
    logits = inner @ network.second + network.second_bias
    chance = 1.0 / (1.0 + np.exp(-np.clip(logits, -60.0, 60.0)))
    outer = (chance - examples.stays) * examples.counts / max(1, examples.counts.sum())
    back = (outer @ network.second.T) * (before > 0.0)
    return [examples.confidence.T @ back, back.sum(0), inner.T @ outer, outer.sum(0)]


def loss_of(network: Filter, examples: Examples) -> float:
    """Mean cross-entropy of a place that counts, in nats."""
    logits = network.logits(examples.confidence)[examples.counts]
    signs = np.where(examples.stays[examples.counts], -1.0, 1.0)
    return float(np.logaddexp(0.0, signs * logits).mean())


def judged(network: Filter, tested: Examples, above: float) -> Fitted:
    """Judge a filter by examples."""
    sure = network.logits(tested.confidence) > np.log(above / (1.0 - above))
    sure, stays = sure[tested.counts], tested.stays[tested.counts]
    both = float((sure & stays).sum())
    return Fitted(
        network,
        loss_of(network, tested),
        both / max(1, int(sure.sum())),
        both / max(1, int(stays.sum())),
    )
