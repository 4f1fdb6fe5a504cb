"""Guess with several sources at once, in one tree that is as large as pays."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, ClassVar

import torch

from draftwood.budget import Budget
from draftwood.drafters.acceptance import Estimator, Prediction
from draftwood.drafters.base import Accepted, DraftSession, Request
from draftwood.drafters.n_grams import NGrams
from draftwood.drafters.sources import News, Opinion, Source, SourceSession, sampling_of_rows
from draftwood.drafters.suffix import Suffix
from draftwood.sampling import Context
from draftwood.tree import DraftTree

SHORTEST_REST, LONGEST_REST = 8, 64  # steps
LEAST_TRIAL = 8  # steps after a rest before the next one
FORGETTING = 0.9  # what a step leaves of the gains of earlier ones

LIKELIEST_CHILD = 0.95  # a node is expanded once a child of this acceptance would be the best guess left


@dataclass(frozen=True)
class Combined:
    """The best guesses of several sources merged in one tree, whose size is chosen anew for every run.

    Sources state opinions on what follows a text; ``Estimator`` makes them one estimate of acceptance, learnt online.
    The tree grows best first over the product of the estimates along each path, and ``Budget`` keeps the part of it
    that emits most tokens per second: all of a long copy, a bush of alternatives, or nothing where no guess pays.
    Merging exact copies with what the target held likely was done by SAM-Decoding (Hu et al. 2024, arXiv:2411.10666)
    and RACER (2026, arXiv:2604.14885).

    Texts that are drawn are guessed with the noise of the draw in view (``Rng.arrivals``), as Daliri et al. 2024
    (arXiv:2408.07978) couple draft and target: a token is likely where its probability is large or its number small.

    Where guesses gain less than drafting costs, the drafter rests for some steps, longer each time: it guesses nothing
    and reads no logits, so that decoding is as fast as without it.

    Differs from the papers: no rule chooses between the sources; a guess that several propose stands once, with the
    evidence of all of them.

    Args:
        sources: what proposes.
        budget: what a run costs on this machine.
        estimator: how opinions become estimates; None takes the one learnt for greedy or for drawn texts.
    """

    name: ClassVar[str] = "combined"
    needs_logits: ClassVar[bool] = True
    needs_hidden: ClassVar[tuple[int, ...]] = ()
    sources: tuple[Source, ...] = (Suffix(), NGrams())
    budget: Budget = field(default_factory=Budget)
    estimator: Estimator | None = None

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"a combined drafter needs at least one source, all of different names, got {names}")

    def start(self, request: Request) -> DraftSession:
        return _CombinedSession(self, request)


class _CombinedSession:
    def __init__(self, config: Combined, request: Request) -> None:
        self.budget = config.budget
        self.sessions = [source.start(request) for source in config.sources]
        usual = Estimator() if request.sampler.greedy else Estimator.for_sampling()
        self.estimates = (config.estimator or usual).start()
        self.sampling = sampling_of_rows(request.sampler)
        self.expected: dict[int, Prediction] = {}  # by node of the last tree
        self.open: Prediction | None = None  # of the token that is now drawn and not yet told
        self.rest = _Rest()
        self.rng = None if request.sampler.greedy else request.rng

    def propose(self, root: int, context: Context) -> DraftTree:
        if self.rest.goes_on():
            return DraftTree.chain([root])
        if self.open is not None:
            self.estimates.learn(self.open, root)
        growth = _Growth(self.sessions, self.budget)
        self.expected = growth.grow(root, self._predict)
        size = 1 + self.budget.best(growth.chances[1:])
        self.rest.count(self.budget.gain(growth.chances[1:size]))
        tokens, parents = growth.tokens[:size], growth.parents[:size]
        proposers = [self.expected[parent].sources(t) for t, parent in zip(tokens[1:], parents[1:], strict=True)]
        draw = "chosen" if self.rng is None else "raced"
        return DraftTree(torch.tensor(tokens), torch.tensor(parents), draw=draw, sources=((), *proposers))

    def _predict(self, opinions: Sequence[Opinion], depth: int) -> Prediction:
        """What follows a node of this depth."""
        noise = None if self.rng is None else partial(self.rng.arrivals, ahead=depth)
        return self.estimates.predict(opinions, depth > 0, noise)

    def update(self, accepted: Accepted) -> None:
        path, tokens = accepted.path, accepted.tree.token_list
        for node, child in pairwise(path):
            if node in self.expected:
                self.estimates.learn(self.expected[node], tokens[child])
        self.open = self.expected.get(path[-1])
        self.expected = {}
        news = News(accepted, self.sampling, quiet=self.rest.left > 0)
        for session in self.sessions:
            session.learn(news)


class _Rest:
    """When drafting is not worth its time."""

    def __init__(self) -> None:
        self.left = 0  # steps
        self.length = SHORTEST_REST
        self.steps = 0  # since the last rest
        self.mean = 1.0  # gain

    def goes_on(self) -> bool:
        self.left = max(0, self.left - 1)
        return self.left > 0

    def count(self, gain: float) -> None:
        """A step's expected gain; a rest begins with the next step if the mean is a loss."""
        self.mean = FORGETTING * self.mean + (1.0 - FORGETTING) * gain
        self.steps += 1
        if self.steps < LEAST_TRIAL:
            return
        if self.mean >= 1.0:
            self.length = SHORTEST_REST
            return
        self.left, self.steps, self.mean = self.length + 1, 0, 1.0
        self.length = min(2 * self.length, LONGEST_REST)


class _Growth:
    """A tree under way, its guesses in falling order of their estimated acceptance."""

    def __init__(self, sessions: Sequence[SourceSession], budget: Budget) -> None:
        self.sessions, self.budget = sessions, budget
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.chances: list[float] = []
        self.depths: list[int] = []
        self.states: list[list[Any]] = []

    def grow(self, root: int, predict: Any) -> dict[int, Prediction]:
        """Fill the tree until no further guess could pay; returns what was expected at each node expanded.

        The heap holds guesses, and nodes to expand as token -1: a guess that barely enters is then never expanded.
        """
        expected: dict[int, Prediction] = {}
        heap: list[tuple[float, int, int, int]] = [(-1.0, 0, root, -1)]
        number, yields, rate = 0, 0.0, 0.0
        while heap:
            chance, _, token, place = heappop(heap)
            size = len(self.tokens)
            if size and -chance < self.budget.least(size - 1, rate):
                break
            if token < 0:
                prediction = expected[place] = predict(self._opinions(place), self.depths[place])
                for guess, estimate in prediction.estimates.items():
                    number += 1
                    heappush(heap, (-self.chances[place] * estimate, number, guess, place))
                continue
            self._add(token, place, -chance)
            yields -= chance
            rate = max(rate, yields / self.budget.costs[size])
            number += 1
            heappush(heap, (chance * LIKELIEST_CHILD, number, -1, size))
        return expected

    def _add(self, token: int, parent: int, chance: float) -> None:
        self.tokens.append(token)
        self.parents.append(parent)
        self.chances.append(chance)
        if parent < 0:
            self.depths.append(0)
            self.states.append([session.begin(token) for session in self.sessions])
            return
        self.depths.append(self.depths[parent] + 1)
        pairs = zip(self.sessions, self.states[parent], strict=True)
        self.states.append([session.advance(state, token) for session, state in pairs])

    def _opinions(self, node: int) -> list[Any]:
        states = self.states[node]
        return [o for session, state in zip(self.sessions, states, strict=True) for o in session.opinions(state)]
