"""How likely the target is to accept a draft token.

Candidates of several sources become one estimate, which is learnt online.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from draftwood.sources.source import Candidates, Evidence

FINE = 4  # buckets per doubling of the odds
BUCKETS = 10 * FINE + 1
LEAST_NOISE = 1e-12  # smaller exponential numbers count as this

# What the defaults of this file hold was learnt by its own rules, starting from equal log-weights,
# over 69 texts of 96 tokens that SmolLM2-135M-Instruct wrote to draftwood's own prompts (the
# built-in ones, and composed ones for training), at temperatures 0 and 1. Lines where a slow source
# was asked come from the same prompts, with `smollm2-135m-eagle` asked wherever it may be.
# The shadow's log-weight was set, so that it outweighs the others; its lines were fitted on 12 of
# the built-in prompts, its reach chosen by speed, both with SmolLM2-135M-Instruct in bfloat16.
LOG_WEIGHTS = {
    Evidence("shadow", 1): 5.0,
    Evidence("bigram-prior", 1): -1.6,
    **{
        Evidence("n-grams", tokens): log_weight
        for tokens, log_weight in enumerate((-0.3, 0.5, 0.5), start=1)
    },
    **{
        Evidence(source, tokens): log_weight
        for source in ("suffix", "earlier-texts", "datastore")
        for tokens, log_weight in enumerate((-2.3, -0.7, 0.2, 0.7, 0.2, 0.5, 0.7, 2.2), start=1)
    },
}

ASKED = 2
"""Tables of estimates: 0 at the root, 1 deeper, then as many where each slow source spoke last."""

Noise = Callable[[Sequence[int]], Sequence[float]]
"""Exponential numbers of tokens; see ``Rng.exponential_noise``."""

Line = tuple[float, float]
"""Acceptance before evidence, as a line between log odds.

Its log odds are the first number plus the second times the log odds of the mean.
"""


class Prediction(NamedTuple):
    """What was expected after one text.

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
        """Of the estimates; 0 where there is none."""
        return max(self.estimates.values(), default=0.0)

    def sources(self, token: int) -> tuple[str, ...]:
        """Names of the sources that proposed this token."""
        return tuple(
            dict.fromkeys(kind.source for kind, guesses, _ in self.candidates if token in guesses)
        )


@dataclass(frozen=True)
class SlowPrior:
    """What is expected where a slow source speaks, before evidence.

    Args:
        root: as ``Estimator.root``.
        deep: as ``Estimator.deep``.
        gain: what it adds to the best estimate, as a share of what this leaves to 1.
        reach: tokens that a better draft token brings, those behind it included.
    """

    root: Line = (0.62, 1.15)
    deep: Line = (0.58, 1.15)
    gain: float = 0.4
    reach: float = 1.5


@dataclass(frozen=True)
class Asking:
    """When a source that takes its time is worth it.

    A draft token is worth its chance less its price, the tokens that a step emits in the time of
    one node more; at least 0. Where the others promise e at a node, a slow source is asked if

        reach * (worth(chance * (e + gain(e))) - worth(chance * e)) > rate * seconds

    The gain is what it added to the best estimate at such nodes, a running mean over those at which
    it was asked; the right side is what a step emits in the time of asking. Several are asked one
    after the other, each on top of what the earlier ones promise.

    Args:
        strength: trials that the gain before evidence is worth.
        decay: what a trial leaves of the earlier ones.
        trial: it is asked at the root of every so many trees, whatever it was worth.
    """

    strength: float = 4.0
    decay: float = 0.95
    trial: int = 16


SLOW = {
    "trained-head": SlowPrior(),
    "shadow": SlowPrior((2.0, 2.2), (2.0, 2.2), 0.6, 1.3),
}
SLOW_AND_DRAWN = {
    "trained-head": SlowPrior((-0.48, 0.89), (-0.40, 0.88)),
    "shadow": SlowPrior((1.5, 2.2), (1.9, 2.7), 0.38, 1.3),
}


@dataclass(frozen=True)
class Estimator:
    """A weighted mean of candidates, then what such means turned out to be worth.

    Candidates weigh the exponential of their kind's log-weight, relative to the others on the same
    text. Log-weights are learnt by exponentiated gradient (Kivinen and Warmuth 1997) on the
    likelihood of the tokens that came. The mean falls into a bucket, and the estimate is the share
    of accepted candidates in this bucket so far, with a prior: (strength * prior + hits) /
    (strength + trials), both counts fading with each trial.

    Trials are counted given that the parent was accepted: every candidate considered at a node that
    the text went through is one, whether it was in the forward pass or not. So a source that was
    given up recovers by itself once its candidates come true. Buckets at the root are apart from
    those below it: the root is the token that earlier drafts missed, and text goes on less
    predictably after a surprise.

    Args:
        log_weight: of each kind before evidence; kinds that are not named start at 0.
        root: line of the prior at the root.
        deep: line of the prior below draft tokens.
        rate: of learning log-weights.
        strength: trials that the prior is worth.
        decay: what a trial leaves of the earlier ones.
        floor: candidates of a smaller mean are not considered.
        slow: what is expected where slow sources speak, by their names; others count as the usual
            ``SlowPrior``.
        asking: when slow sources are asked.
    """

    log_weight: Mapping[Evidence, float] = field(default_factory=lambda: LOG_WEIGHTS)
    root: Line = (-0.75, 0.79)
    deep: Line = (-0.06, 1.02)
    rate: float = 0.1
    strength: float = 40.0
    decay: float = 0.99
    floor: float = 0.02
    slow: Mapping[str, SlowPrior] = field(default_factory=lambda: SLOW)
    asking: Asking = Asking()

    def __post_init__(self) -> None:
        if self.rate < 0 or self.strength <= 0 or not 0 < self.decay <= 1 or not 0 < self.floor < 1:
            raise ValueError(
                "rate must be at least 0, strength above 0, decay above 0 and at most 1, floor"
                f" between 0 and 1, got {self.rate}, {self.strength}, {self.decay} and {self.floor}"
            )

    @classmethod
    def for_sampling(cls) -> "Estimator":
        """For texts that are drawn.

        There the likeliest token comes less often than where it is always taken.
        """
        return cls(root=(-1.43, 0.67), deep=(-0.96, 0.76), slow=SLOW_AND_DRAWN)

    def start(self, slow: Sequence[str] = ()) -> "Estimates":
        """Nothing shown yet, with these slow sources."""
        return Estimates(self, slow)

    def slow_prior(self, name: str) -> SlowPrior:
        """What is expected where a slow source speaks."""
        return self.slow.get(name, SlowPrior())

    def lines(self, slow: Sequence[str]) -> list[Line]:
        """Of all tables in their order, where there are these slow sources."""
        priors = map(self.slow_prior, slow)
        return [self.root, self.deep, *(line for each in priors for line in (each.root, each.deep))]


class AskingGains:
    """What a slow source added in one request; see ``Asking``."""

    def __init__(self, config: Asking, prior: SlowPrior) -> None:
        self.config, self.prior, self.trees = config, prior, 0
        self.sums = [[0.0] * BUCKETS for _ in range(2)]
        self.trials = [[0.0] * BUCKETS for _ in range(2)]

    def gain(self, deep: bool, best: float) -> float:
        """What asking adds where the others promise ``best``."""
        config, bucket = self.config, bucket_of(best)
        before = self.prior.gain * (1.0 - best)
        return (config.strength * before + self.sums[deep][bucket]) / (
            config.strength + self.trials[deep][bucket]
        )

    def learn(self, deep: bool, best: float, more: float) -> None:
        """Asking added ``more``."""
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
        """Whether to ask at a node that is reached with ``chance``.

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
        return self.prior.reach * (after - before) > rate * seconds


def bucket_of(mean: float) -> int:
    """Number of the bucket of a mean, 0 to 1: even steps of the logarithm of its odds."""
    return BUCKET_OF[min(_STEPS - 1, int(mean * _STEPS))]


def _computed_bucket(mean: float) -> int:
    odds = math.log2(mean / (1.0 - mean)) if mean < 0.99 else 5.0
    return min(BUCKETS - 1, max(0, round((odds + 5.0) * FINE)))


_STEPS = 4096  # of a table that is looked up a hundred times per step of decoding
BUCKET_OF = [_computed_bucket((step + 0.5) / _STEPS) for step in range(_STEPS)]


def coupled(mixed: Mapping[int, float], noise: Noise) -> dict[int, float]:
    """Each token's share of all race scores: its probability over its exponential number.

    The token of the largest score is drawn, so where the probabilities are the target's own the
    largest share is right. All that is not expected has the score of one token that holds what is
    left of the probability.
    """
    times = noise(list(mixed))
    race_score = {
        token: mean / max(time, LEAST_NOISE)
        for (token, mean), time in zip(mixed.items(), times, strict=True)
    }
    total = sum(race_score.values()) + max(0.0, 1.0 - sum(mixed.values()))
    return {token: value / total for token, value in race_score.items()}


def before_evidence(line: Line) -> list[float]:
    """The estimate of each bucket before any trial."""
    odds = [math.log(2.0) * (bucket / FINE - 5.0) for bucket in range(BUCKETS)]
    return [1.0 / (1.0 + math.exp(-line[0] - line[1] * value)) for value in odds]


class Estimates:
    """What one request has shown, by table."""

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
        """What comes next, and how likely each candidate is to be accepted.

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
        means = mixed if noise is None or not mixed else coupled(mixed, noise)
        means = {token: mean for token, mean in means.items() if mean > floor}
        return Prediction(
            weighed,
            mixed,
            means,
            {token: values[bucket_of(mean)] for token, mean in means.items()},
            table,
        )

    def learn(self, prediction: Prediction, token: int) -> None:
        """The text went on with ``token`` where ``prediction`` was made."""
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
