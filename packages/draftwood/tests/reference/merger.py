"""Candidates of several sources, grown into one tree best first."""

from collections.abc import Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any

from draftwood.costs.budget import Budget
from draftwood.drafters.drafter import DraftRequest, VerifiedTree
from draftwood.sources.acceptance import Estimator
from draftwood.sources.merger import LIKELIEST_CHILD, Grown
from draftwood.sources.source import SlowSession, Source, TargetUpdate
from draftwood.tree import UNBOUNDED
from reference.estimates import ASKED, AskingGains, Estimates, Prediction
from reference.sessions import start


class PythonMerger:
    """``Merger`` and its sources all in Python.

    Args:
        sources: what proposes.
        estimator: how candidates become estimates.
        request: whose text it is; texts that are drawn are drafted with the noise of the draw in
            view.
    """

    in_python = True

    def __init__(
        self, sources: Sequence[Source], estimator: Estimator, request: DraftRequest
    ) -> None:
        sessions = [start(source, request) for source in sources]
        self.slow = [each for each in sessions if isinstance(each, SlowSession)]
        self.sessions = [each for each in sessions if each not in self.slow] + self.slow
        named = zip(sources, sessions, strict=True)
        slow = [source.name for source, each in named if each in self.slow]
        read = [layer for each in sessions for layer in getattr(each, "hidden", ())]
        self.hidden = self.always = self.reads = tuple(dict.fromkeys(read))
        self.estimates = Estimates(estimator, slow)
        self.gains = [AskingGains(estimator.asking, estimator.slow_prior(name)) for name in slow]
        self.sampling = request.row_sampling
        self.rng = None if request.sampler.greedy else request.rng
        self.open: Prediction | None = None  # of the token that is now drawn and not yet told
        self.shared = False  # whether other texts share the pass
        self._clear()

    def _clear(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.chances: list[float] = []
        self.depths: list[int] = []
        self.states: list[list[Any]] = []
        self.expected: dict[int, Prediction] = {}  # by node

    def grow(
        self, root: int, budget: Budget, max_draft_len: int = UNBOUNDED, others: float = 0.0
    ) -> Grown:
        """Draft like ``Merger.grow``.

        The heap holds candidates, and nodes to expand as token -1: a candidate that barely enters
        is never expanded.
        """
        if self.open is not None:
            self.estimates.learn(self.open, root)
        self._clear()
        for each in self.gains:
            each.trees += 1
        heap: list[tuple[float, int, int, int]] = [(-1.0, 0, root, -1)]
        number, yields, rate, self.shared = 0, others, 0.0, others > 0
        while heap:
            chance, _, token, place = heappop(heap)
            size = len(self.tokens)
            if size and -chance < rate * budget.slopes[size - 1]:
                break
            if token < 0:
                price = rate * budget.slopes[size - 1]
                for guess, estimate in self._predict(place, rate, price).estimates.items():
                    number += 1
                    heappush(heap, (-self.chances[place] * estimate, number, guess, place))
                continue
            self._add(token, place, -chance)
            yields -= chance
            rate = max(rate, yields / budget.costs[size])
            number += 1
            if self.depths[size] < max_draft_len:
                heappush(heap, (chance * LIKELIEST_CHILD, number, -1, size))
        return Grown(self.tokens, self.parents, self.chances)

    def proposers(self, size: int) -> tuple[tuple[str, ...], ...]:
        pairs = zip(self.tokens[1:size], self.parents[1:size], strict=True)
        return ((), *(self.expected[parent].sources(token) for token, parent in pairs))

    def spent(self) -> float:
        return sum(session.spent() for session in self.slow)

    def learn(self, accepted: VerifiedTree, quiet: bool) -> None:
        node: int | None = 0 if self.tokens else None
        for token in accepted.tokens[1:]:
            if node in self.expected:
                self.estimates.learn(self.expected[node], token)
            node = self._child(node, token)
        self.open = None if node is None else self.expected.get(node)
        self._clear()
        news = TargetUpdate(accepted, self.sampling, quiet)
        for session in self.sessions:
            session.learn(news)

    def _child(self, node: int | None, token: int) -> int | None:
        """Find the node with this token below another: what was run may have other numbers."""
        pairs = enumerate(zip(self.parents, self.tokens, strict=True))
        return next((place for place, pair in pairs if pair == (node, token)), None)

    def _predict(self, node: int, rate: float, price: float) -> Prediction:
        """Ask all sources that are worth their time at a node what follows it.

        A slow one is asked at the root and, unless it goes anywhere, below a node at which it was.
        """
        depth, count = self.depths[node], len(self.sessions) - len(self.slow)
        pairs = list(zip(self.sessions, self.states[node], strict=True))
        free, slow = pairs[:count], pairs[count:]
        candidates = [each for session, state in free for each in session.candidates(state)]
        noise = None if self.rng is None else partial(self.rng.exponential_noise, ahead=depth)
        deep = depth > 0
        prediction = self.estimates.predict(candidates, deep, noise)
        for number, (session, state) in enumerate(slow):
            best, asked = prediction.best, prediction.asked
            if not self._asks(number, node, best, rate, price):
                continue
            candidates += session.candidates(state)
            table = deep + ASKED * (number + 1)
            prediction = self.estimates.predict(candidates, table, noise)
            prediction = prediction._replace(asked=asked | {number})
            self.gains[number].learn(deep, best, prediction.best - best)
        self.expected[node] = prediction
        return prediction

    def _asks(self, number: int, node: int, best: float, rate: float, price: float) -> bool:
        session, deep = self.slow[number], self.depths[node] > 0
        if deep and not session.anywhere and number not in self.expected[self.parents[node]].asked:
            return False
        seconds, chance = session.seconds[deep], self.chances[node]
        return self.gains[number].pays(deep, chance, best, price, rate, seconds, self.shared)

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
