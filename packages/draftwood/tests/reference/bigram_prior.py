"""The session of a bigram prior: native/sources/bigram_prior.cpp."""

import numpy as np

from draftwood.sources import BigramPrior
from draftwood.sources.source import Candidates, Evidence, TargetUpdate


def row_of(prior: BigramPrior, token: int) -> dict[int, float]:
    """Successors of one token with their probabilities; empty where the table has none."""
    places = np.flatnonzero(prior.ids == token)
    if not places.size:
        return {}
    known = zip(prior.tokens[places[0]].tolist(), prior.probs[places[0]].tolist(), strict=True)
    return {successor: chance for successor, chance in known if successor >= 0}


class BigramPriorSession:
    def __init__(self, prior: BigramPrior) -> None:
        self.prior = prior
        self.kind = Evidence(prior.name, 1)

    def learn(self, news: TargetUpdate) -> None:
        """The table stays as it is."""

    def begin(self, root: int) -> int:
        return root

    def advance(self, state: int, token: int) -> int:
        return token

    def candidates(self, state: int) -> list[Candidates]:
        row = row_of(self.prior, state)
        return [(self.kind, row)] if row else []
