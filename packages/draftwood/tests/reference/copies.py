"""Sessions of the sources that copy, as the headers of native/sources have them."""

import threading
from collections import Counter
from collections.abc import Sequence
from weakref import ref

from draftwood.sources.auto.suffix import BREAK, DEEPEST, UNSEEN, VARIED, WIDEST, Suffix, deepest
from draftwood.sources.datastore import SAMPLED, Datastore
from draftwood.sources.earlier_texts import EarlierTexts, kept_tokens
from draftwood.sources.source import Candidates, Evidence, TargetUpdate, kinds_of
from draftwood_serve.integrations.suffix_automaton import Match, SuffixAutomaton, continuations
from reference.look_up import Range, step, whole


class SuffixSession:
    def __init__(self, config: Suffix) -> None:
        self.shortest = config.shortest
        self.automaton = SuffixAutomaton(deepest(config.longest))
        self.kinds = kinds_of(config.name, config.longest)

    def learn(self, news: TargetUpdate) -> None:
        for token in news.accepted.tokens:
            self.automaton.append(token)

    def begin(self, root: int) -> Match:
        return self.automaton.step(*self.automaton.repeated(), root)

    def advance(self, state: Match, token: int) -> Match:
        return self.automaton.step(*state, token)

    def candidates(self, state: Match) -> list[Candidates]:
        return opinions_on(self.automaton, state, self.kinds, self.shortest)


def opinions_on(
    automaton: SuffixAutomaton, match: Match, kinds: Sequence[Evidence], shortest: int
) -> list[Candidates]:
    """Name the likeliest continuations of a match."""
    found = continuations(automaton, match, shortest)
    return [(kinds[min(match[1], len(kinds) - 1)], found)] if found else []


class Memory:
    """Texts of requests in one automaton.

    Each request reads the automaton that was there when the request started. A younger one is
    filled beside it before there are too many texts, and then takes its place, so that no request
    waits while another one is built.

    Args:
        max_tokens: tokens remembered; beyond, two thirds of them are forgotten.
        deepest: tokens of the longest match.

    Attributes:
        lock: for whoever reads or writes the automaton or the texts, as requests may run in several
            threads.
    """

    def __init__(self, max_tokens: int, deepest: int = DEEPEST) -> None:
        self.max_tokens, self.deepest = max_tokens, deepest
        self.lock = threading.Lock()
        self.automaton = SuffixAutomaton(deepest)
        self.younger: SuffixAutomaton | None = None
        # by request what is not yet in the automaton
        self.news: list[tuple[ref[object], list[int]]] = []

    def open(self, request: object) -> tuple[list[int], SuffixAutomaton]:
        """Take in what was written since the last call.

        Args:
            request: that will write, for as long as it is referred to.

        Returns:
            An empty text for it to write to, and the automaton for it to read.
        """
        with self.lock:
            for _, text in self.news:
                self._take_in(text)
            self.news = [each for each in self.news if each[0]() is not None]
            self.news.append((ref(request), []))
            return self.news[-1][1], self.automaton

    def _take_in(self, text: list[int]) -> None:
        if not text:
            return
        kept = kept_tokens(self.max_tokens)
        new = text[max(0, len(text) - self.max_tokens + 1) :]
        if self.younger is None and self.automaton.length + len(new) > self.max_tokens - kept:
            self.younger = SuffixAutomaton(self.deepest)
        for automaton in filter(None, (self.automaton, self.younger)):
            for token in (*new, BREAK):
                automaton.append(token)
        text.clear()
        while self.automaton.length > self.max_tokens:  # requests under way keep the old one
            self.automaton = self.younger or SuffixAutomaton(self.deepest)
            self.younger = None


class EarlierTextsSession:
    def __init__(self, config: EarlierTexts, memory: Memory) -> None:
        self.shortest = config.shortest
        self.text, self.automaton = memory.open(self)
        self.lock = memory.lock
        self.kinds = kinds_of(config.name, config.longest)
        self.match: Match = (0, 0)

    def learn(self, news: TargetUpdate) -> None:
        with self.lock:
            for token in news.accepted.tokens:
                self.text.append(token)
                self.match = self.automaton.step(*self.match, token)

    def begin(self, root: int) -> Match:
        return self.advance(self.match, root)

    def advance(self, state: Match, token: int) -> Match:
        with self.lock:
            return self.automaton.step(*state, token)

    def candidates(self, state: Match) -> list[Candidates]:
        with self.lock:
            return opinions_on(self.automaton, state, self.kinds, self.shortest)


class DatastoreSession:
    def __init__(self, config: Datastore) -> None:
        self.index, self.shortest = config.index, config.shortest
        self.kinds = kinds_of(config.name, config.longest)
        self.match = whole(self.index)

    def learn(self, news: TargetUpdate) -> None:
        for token in news.accepted.tokens[-DEEPEST:]:  # no match begins before
            self.match = step(self.index, self.match, token)

    def begin(self, root: int) -> Range:
        return self.advance(self.match, root)

    def advance(self, state: Range, token: int) -> Range:
        return step(self.index, state, token)

    def candidates(self, state: Range) -> list[Candidates]:
        if state.matched < self.shortest:
            return []
        apart = -(-(state.end - state.first) // SAMPLED)
        counts = Counter(self.index.following[state.first : state.end : apart].tolist())
        if len(counts) > VARIED:
            return []
        counts.pop(BREAK, None)
        if not counts:
            return []
        total = counts.total() + UNSEEN
        if len(counts) > WIDEST:
            counts = dict(counts.most_common(WIDEST))
        probs = {token: count / total for token, count in counts.items()}
        return [(self.kinds[min(state.matched, len(self.kinds) - 1)], probs)]
