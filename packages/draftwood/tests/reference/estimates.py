"""Estimates of how likely a draft token is to be accepted: ``Estimates`` of merging.h."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from draftwood.sources.acceptance import (
    BUCKET_OF,
    BUCKETS,
    LEAST_NOISE,
    STEPS,
    Asking,
    Estimator,
    SlowPrior,
    before_evidence,
)
from draftwood.sources.source import Candidates, Evidence

ASKED = 2
"""Tables of estimates: 0 at the root, 1 deeper, then as many where each slow source spoke last."""

Noise = Callable[[Sequence[int]], Sequence[float]]
"""Exponential numbers of tokens; see ``Rng.exponential_noise``."""


class Prediction(NamedTuple):
    """The expectation after one text.

    Attributes:
        candidates: with the weight each had.
        mixed: weighted mean of the probabilities, by token.
        means: of the likelier tokens what their acceptance is estimated by: this mean, or what it
            came to once the noise of the draw was known.
        estimates: estimated acceptance of these.
        table: of estimates, by whether draft tokens led here and which slow source spoke last.
        asked: numbers of the slow sources that spoke.
    """

    candidates: list[tuple[Evidence, dict[int, float], float]]
    mixed: dict[int, float]
    means: dict[int, float]
    estimates: dict[int, float]
    table: int
    asked: frozenset[int] = frozenset()

    @property
    def best(self) -> float:
        """The largest of the estimates; 0 where there is none."""
        return max(self.estimates.values(), default=0.0)

    def sources(self, token: int) -> tuple[str, ...]:
        """Names of the sources that proposed this token."""
        return tuple(
            dict.fromkeys(kind.source for kind, guesses, _ in self.candidates if token in guesses)
        )


class AskingGains:
    """Gains that a slow source brought in one request; see ``Asking``."""

    def __init__(self, config: Asking, prior: SlowPrior) -> None:
        self.config, self.prior, self.trees = config, prior, 0
        self.sums = [[0.0] * BUCKETS for _ in range(2)]
        self.trials = [[0.0] * BUCKETS for _ in range(2)]

    def gain(self, deep: bool, best: float) -> float:
        """Estimate what asking adds where the others promise ``best``."""
        config, bucket = self.config, bucket_of(best)
        before = self.prior.gain * (1.0 - best)
        return (config.strength * before + self.sums[deep][bucket]) / (
            config.strength + self.trials[deep][bucket]
        )

    def learn(self, deep: bool, best: float, more: float) -> None:
        """Count that asking added ``more``."""
        bucket, decay = bucket_of(best), self.config.decay
        self.sums[deep][bucket] = self.sums[deep][bucket] * decay + more
        self.trials[deep][bucket] = self.trials[deep][bucket] * decay + 1.0

    def pays(
        self,
        deep: bool,
        chance: float,
        best: float,
        price: float,
        rate: float,
        seconds: float,
        shared: bool = False,
    ) -> bool:
        """Decide whether to ask at a node that is reached with ``chance``.

        Args:
            shared: whether other texts share the pass; they do not wait for a trial.
            best: estimate that the others promise there.
            price: tokens that a further node costs.
            rate: tokens a second so far.
            seconds: of asking.
        """
        if not deep and not shared and self.trees % self.config.trial == 0:
            return True
        before = max(0.0, chance * best - price)
        after = max(0.0, chance * (best + self.gain(deep, best)) - price)
        return self.prior.reach[deep] * (after - before) > rate * seconds


def bucket_of(mean: float) -> int:
    """Number of the bucket of a mean, 0 to 1: even steps of the logarithm of its odds."""
    return BUCKET_OF[min(STEPS - 1, int(mean * STEPS))]


def coupled(mixed: Mapping[int, float], noise: Noise, sharpness: float) -> dict[int, float]:
    """Compute each token's share of all race scores: its probability over its exponential number.

    The token of the largest score is drawn, so where the probabilities are the target's own the
    largest share is right. All that is not expected has the score of one token that holds what is
    left of the probability. Probabilities are sharpened, and keep their sum.
    """
    times, powers = noise(list(mixed)), [mean**sharpness for mean in mixed.values()]
    scale = sum(mixed.values()) / (sum(powers) or 1.0)
    mixed = {token: power * scale for token, power in zip(mixed, powers, strict=True)}
    race_score = {
        token: mean / max(time, LEAST_NOISE)
        for (token, mean), time in zip(mixed.items(), times, strict=True)
    }
    total = sum(race_score.values()) + max(0.0, 1.0 - sum(mixed.values()))
    return {token: value / total for token, value in race_score.items()}


class Estimates:
    """Acceptance that one request has shown, by table."""

    def __init__(self, config: Estimator, slow: Sequence[str] = ()) -> None:
        self.config = config
        self.log_weight = dict(config.log_weight)
        self.prior = [before_evidence(line) for line in config.lines(slow)]
        self.values = [list(row) for row in self.prior]
        self.hits = [[0.0] * BUCKETS for _ in self.prior]
        self.trials = [[0.0] * BUCKETS for _ in self.prior]

    def predict(
        self, candidates: Sequence[Candidates], table: int, noise: Noise | None = None
    ) -> Prediction:
        """Predict what comes next, and how likely each candidate is to be accepted.

        Args:
            candidates: of all sources.
            table: of estimates.
            noise: exponential numbers of tokens in the draw that decides; None for greedy texts.
        """
        log_weight = self.log_weight
        weights = [math.exp(log_weight.get(kind, 0.0)) for kind, _ in candidates]
        total = sum(weights)
        weighed: list[tuple[Evidence, dict[int, float], float]] = []
        mixed: dict[int, float] = {}
        for (kind, guesses), weight in zip(candidates, weights, strict=True):
            weight /= total
            weighed.append((kind, guesses, weight))
            for token, probability in guesses.items():
                mixed[token] = mixed.get(token, 0.0) + weight * probability
        values, floor = self.values[table], self.config.floor
        means = (
            mixed if noise is None or not mixed else coupled(mixed, noise, self.config.sharpness)
        )
        means = {token: mean for token, mean in means.items() if mean > floor}
        return Prediction(
            weighed,
            mixed,
            means,
            {token: values[bucket_of(mean)] for token, mean in means.items()},
            table,
        )

    def learn(self, prediction: Prediction, token: int) -> None:
        """Learn that the text went on with ``token`` where ``prediction`` was made."""
        mean = prediction.mixed.get(token, 0.0)
        if mean > 0.0 and len(prediction.candidates) > 1:
            rate, log_weight = self.config.rate, self.log_weight
            for kind, guesses, weight in prediction.candidates:
                share = weight * guesses.get(token, 0.0) / mean
                log_weight[kind] = log_weight.get(kind, 0.0) + rate * (share - weight)
        table, decay, strength = prediction.table, self.config.decay, self.config.strength
        hits, trials, values, prior = (
            self.hits[table],
            self.trials[table],
            self.values[table],
            self.prior[table],
        )
        for guess, mean in prediction.means.items():
            bucket = bucket_of(mean)
            hits[bucket] = hits[bucket] * decay + (guess == token)
            trials[bucket] = trials[bucket] * decay + 1.0
            values[bucket] = (strength * prior[bucket] + hits[bucket]) / (strength + trials[bucket])
