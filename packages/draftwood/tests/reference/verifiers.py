"""Known values that verifiers are held to: exact acceptance probabilities at one node, worked out
by hand.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Float

from draftwood.testing import Walk, plain_tree, walks
from draftwood.tree import Draw
from draftwood.verifiers import Block, GreedyPlusOne, KSeq, Match, Rejection, Traversal, Verifier

try:
    from draftwood_methods.verifiers.blockwise import Distance, TopN
    from draftwood_methods.verifiers.typical import Typical
except ModuleNotFoundError:  # of a package that needs PyTorch
    INEXACT: tuple[Verifier, ...] = ()
else:
    INEXACT = (Typical(), TopN(), Distance())

VERIFIERS: tuple[Verifier, ...] = (
    Match(),
    Rejection(),
    KSeq(),
    GreedyPlusOne(),
    Block(),
    Traversal(),
    *INEXACT,
)
EXACT = [(verifier, draw) for verifier in VERIFIERS for draw in sorted(verifier.exact_for)]


@dataclass(frozen=True)
class Row:
    """A target p, a draft q, a number of children, and what each rule accepts of them."""

    p: tuple[float, ...]
    q: tuple[float, ...]
    count: int
    single: float
    independent: Fraction
    distinct: Fraction
    k_seq: float
    rho: float
    beta: float
    match_independent: float
    greedy_plus_one: Fraction
    best_independent: Fraction
    best_distinct: Fraction

    @property
    def target(self) -> Float[np.ndarray, "vocab vocab"]:
        return context_free(self.p)

    @property
    def draft(self) -> Float[np.ndarray, "vocab vocab"]:
        return context_free(self.q)


ROWS = (
    Row(
        p=(0.618, 0.354, 0.028),
        q=(0.373, 0.580, 0.047),
        count=2,
        single=0.755,
        independent=Fraction(169277, 200000),
        distinct=Fraction(192754417, 200130000),
        k_seq=0.882732,
        rho=1.3424,
        beta=0.6576,
        match_independent=0.669171,
        greedy_plus_one=Fraction(1),
        best_independent=Fraction(988871, 1000000),
        best_distinct=Fraction(1),
    ),
    Row(
        p=(0.469, 0.124, 0.407),
        q=(0.201, 0.275, 0.524),
        count=3,
        single=0.732,
        independent=Fraction(207227133, 250000000),
        distinct=Fraction(1),
        k_seq=0.880028,
        rho=1.7365,
        beta=0.5068,
        match_independent=0.669623,
        greedy_plus_one=Fraction(1),
        best_independent=Fraction(1),
        best_distinct=Fraction(1),
    ),
    Row(
        p=(0.148, 0.042, 0.745, 0.050, 0.015),
        q=(0.496, 0.136, 0.151, 0.008, 0.209),
        count=3,
        single=0.364,
        independent=Fraction(137542321, 250000000),
        distinct=Fraction(76025810217187, 101241861840000),
        k_seq=0.573722,
        rho=2.3190,
        beta=0.2474,
        match_independent=0.441820,
        greedy_plus_one=Fraction(8779, 11800),
        best_independent=Fraction(610176679, 1000000000),
        best_distinct=Fraction(4440878158613, 5062093092000),
    ),
    Row(
        p=(0.3, 0.4, 0.3),
        q=(0.6, 0.3, 0.1),
        count=2,
        single=0.7,
        independent=Fraction(41, 50),
        distinct=Fraction(7, 8),
        k_seq=0.84,
        rho=1.4,
        beta=0.6,
        match_independent=0.513,
        greedy_plus_one=Fraction(19, 20),
        best_independent=Fraction(89, 100),
        best_distinct=Fraction(139, 140),
    ),
)


def context_free(law: tuple[float, ...]) -> Float[np.ndarray, "vocab vocab"]:
    """A table with the same next-token law after every token."""
    return np.tile(np.array(law, np.float64), (len(law), 1))


def one_level(verifier: Verifier, draw: Draw, row: Row, count: int | None = None) -> list[Walk]:
    """Every walk over a tree of one level with the row's number of children."""
    return walks(verifier, plain_tree((count or row.count,), draw, row.draft), row.target)


def acceptance(found: list[Walk]) -> float:
    """Probability that a drafted token is kept."""
    return sum(walk.probability for walk in found if walk.verdict.path)
