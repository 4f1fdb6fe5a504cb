"""Settings of the estimate of how likely the target is to accept a draft token.

``native/merging.h`` makes one estimate of the candidates of several sources, and learns it online.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from draftwood.sampling import Sampling
from draftwood.sources.source import Evidence

UNCUT = Sampling(1.0)
FINE = 4  # buckets per doubling of the odds
BUCKETS = 10 * FINE + 1
LEAST_NOISE = 1e-12  # smaller exponential numbers count as this

# What the defaults of this file hold was learnt by its own rules, starting from equal log-weights,
# over 69 texts of 96 tokens that SmolLM2-135M-Instruct wrote to draftwood's own prompts (the
# built-in ones, and composed ones for training), at temperatures 0 and 1. Lines where a slow source
# was asked come from the same prompts, with `smollm2-135m-eagle` asked wherever it may be; lines of
# drawn texts from 80 texts of 128 tokens to 20 other prompts, half of them with this head.
# The prediction's log-weights and trust were set, so that a text which agrees for long leads.
# The shadow's log-weight was set, so that it outweighs the others; its lines were fitted on 12 of
# the built-in prompts, its reach chosen by speed, both with SmolLM2-135M-Instruct in bfloat16.
LOG_WEIGHTS = {
    Evidence("shadow", 1): 5.0,
    Evidence("bigram-prior", 1): -1.6,
    **{
        Evidence("prediction", level): log_weight
        for level, log_weight in enumerate((-3.0, -1.0, -2.5, -0.5, 0.5, 2.0, 3.0, 5.0))
    },
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

Line = tuple[float, float]
"""Acceptance before evidence, as a line between log odds.

Its log odds are the first number plus the second times the log odds of the mean.
"""


@dataclass(frozen=True)
class SlowPrior:
    """The acceptance expected where a slow source speaks, before evidence.

    Args:
        root: as ``Estimator.root``.
        deep: as ``Estimator.deep``.
        gain: what it adds to the best estimate, as a share of what this leaves to 1.
        reach: tokens that a better draft token brings, those behind it included; at the root and
            deeper, where fewer nodes follow.
    """

    root: Line = (0.62, 1.15)
    deep: Line = (0.58, 1.15)
    gain: float = 0.4
    reach: tuple[float, float] = (1.5, 1.0)


@dataclass(frozen=True)
class Asking:
    """A rule that asks a source which takes its time only where that pays.

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


@dataclass(frozen=True)
class Resting:
    """When all texts leave a source alone, and what they learn of it together.

    A step with the source brings the tokens of its path that a tree of as many nodes would not have
    without it, and costs what a step emits in the time of its questions, of the states that it
    reads and of nodes that are there for it alone. Where the sum over steps is below 0 beyond
    ``doubt`` times the root of one more than the squares of tokens that it brought, no text asks it
    or reads states for it, for some steps; then all begins afresh.

    Args:
        least: steps before it may rest.
        shortest: steps of the first rest; each is twice as long as the one before.
        longest: steps of the longest.
        forgetting: what a step leaves of the sums of earlier ones.
        doubt: such roots.
        reading: share of a plain pass that handing out states takes.
        strength: candidates that the acceptance before evidence is worth to later texts.
        decay: what a candidate, or a question, leaves of the earlier ones.
        prior: questions whose gains are taken as stated.
    """

    least: int = 24
    shortest: int = 128
    longest: int = 2048
    forgetting: float = 0.995
    doubt: float = 2.0
    reading: float = 0.01
    strength: float = 40.0
    decay: float = 0.995
    prior: float = 16.0


RESTING = Resting()
"""The usual one."""

HEADS = ("trained-head", "head-in-pytorch")
SLOW = {
    **dict.fromkeys(HEADS, SlowPrior()),
    "shadow": SlowPrior((2.0, 2.2), (2.0, 2.2), 0.6, (1.3, 1.3)),
}
SLOW_AND_DRAWN = {
    **dict.fromkeys(HEADS, SlowPrior((-0.26, 0.92), (-0.18, 0.90))),
    "shadow": SlowPrior((1.5, 2.2), (1.9, 2.7), 0.38, (1.3, 1.3)),
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
        sharpness: power of means where the noise of a draw is known. What sources hold unlikely is
            mostly less likely still, and now and then far likelier.
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
    sharpness: float = 1.25
    slow: Mapping[str, SlowPrior] = field(default_factory=lambda: SLOW)
    asking: Asking = Asking()

    def __post_init__(self) -> None:
        if self.rate < 0 or self.strength <= 0 or not 0 < self.decay <= 1 or not 0 < self.floor < 1:
            raise ValueError(
                "rate must be at least 0, strength above 0, decay above 0 and at most 1, floor"
                f" between 0 and 1, got {self.rate}, {self.strength}, {self.decay} and {self.floor}"
            )

    @classmethod
    def for_sampling(cls, cuts: Sampling = UNCUT) -> "Estimator":
        """Make the estimator of texts that are drawn.

        There the likeliest token comes less often than where it is always taken. What top-k, top-p
        and min-p leave of a row is likelier than sources say, which are not cut.

        Args:
            cuts: what is drawn from.
        """
        few = 2.5 / cuts.top_k if cuts.top_k else 0.0
        nucleus, likely = 7.0 * (0.95 - cuts.top_p), 0.75 * cuts.min_p / (cuts.min_p + 0.02)
        sharpness = cls.sharpness + min(0.75, max(0.0, few, nucleus, likely))
        return cls(root=(-1.47, 0.61), deep=(-1.10, 0.73), slow=SLOW_AND_DRAWN, sharpness=sharpness)

    def slow_prior(self, name: str) -> SlowPrior:
        """Look up what is expected where a slow source speaks."""
        return self.slow.get(name, SlowPrior())

    def lines(self, slow: Sequence[str]) -> list[Line]:
        """List the lines of all tables in their order, where there are these slow sources."""
        priors = map(self.slow_prior, slow)
        return [self.root, self.deep, *(line for each in priors for line in (each.root, each.deep))]


def _computed_bucket(mean: float) -> int:
    """Number the bucket of a mean, 0 to 1: even steps of the logarithm of its odds."""
    odds = math.log2(mean / (1.0 - mean)) if mean < 0.99 else 5.0
    return min(BUCKETS - 1, max(0, round((odds + 5.0) * FINE)))


STEPS = 4096  # of a table that is looked up a hundred times per step of decoding
BUCKET_OF = [_computed_bucket((step + 0.5) / STEPS) for step in range(STEPS)]


def before_evidence(line: Line) -> list[float]:
    """Compute the estimate of each bucket before any trial."""
    odds = [math.log(2.0) * (bucket / FINE - 5.0) for bucket in range(BUCKETS)]
    return [1.0 / (1.0 + math.exp(-line[0] - line[1] * value)) for value in odds]
