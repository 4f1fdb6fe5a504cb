"""A suffix automaton: all substrings of a text that grows, and what followed them."""

from draftwood.sources.auto.suffix import Suffix

SETTINGS = Suffix(longest=8, shortest=1).settings
"""Settings of matches, those of the C++ automaton of ``auto``."""
Match = tuple[int, int]
"""A state of the automaton and how many of the newest tokens it represents."""


class SuffixAutomaton:
    """All substrings of a text that grows at its end, each with the number of places where it ends.

    A state represents substrings that end in the same places; ``links`` leads to the longest
    shorter suffix that ends in more places. Appending a token takes constant time on average
    (Blumer et al. 1985) plus a walk along the links that counts the new place, of at most
    ``deepest`` + 1 steps: places are counted of the substrings that a match and its continuation
    may be.

    Args:
        deepest: tokens of the longest match.

    Attributes:
        following: for each state the state reached with each token.
        links: suffix link, -1 for the empty substring, which is state 0.
        lengths: of the longest substring of each state.
        counts: places where the substrings of each state end.
        newest: the last of these places, as the length of the text there.
        last: state of the whole text.
    """

    def __init__(self, deepest: int = SETTINGS.deepest) -> None:
        self.deepest = deepest
        self.following: list[dict[int, int]] = [{}]
        self.links, self.lengths, self.counts, self.newest = [-1], [0], [0], [0]
        self.last = 0
        self.length = 0
        self._counted = 0  # state of the longest end of the text of which places are counted

    def append(self, token: int) -> None:
        """Make the text one token longer."""
        self.length += 1
        state = self._new({}, self.lengths[self.last] + 1, 0)
        before, following = self.last, self.following
        while before >= 0 and token not in following[before]:
            following[before][token] = state
            before = self.links[before]
        self.links[state] = 0 if before < 0 else self._split(before, token)
        self.last = state
        self._counted = state = self._cut(self.following[self._counted][token], self.deepest + 1)
        while state > 0:
            self.counts[state] += 1
            self.newest[state] = self.length
            state = self.links[state]

    def repeated(self) -> "Match":
        """The longest end of the text that also occurs elsewhere in it."""
        earlier = max(self.links[self.last], 0)
        if self.lengths[earlier] <= self.deepest:
            return earlier, self.lengths[earlier]
        return self._cut(self._counted, self.deepest), self.deepest

    def _cut(self, state: int, length: int) -> int:
        """The state of the last so many tokens of what ``state`` represents."""
        while self.lengths[self.links[state]] >= length:
            state = self.links[state]
        return state

    def step(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """State and length of the longest suffix of (a match, token) that the text holds."""
        following = self.following
        while token not in following[state]:
            state = self.links[state]
            if state < 0:
                return 0, 0
            matched = self.lengths[state]
        state = following[state][token]
        return (
            (state, matched + 1)
            if matched < self.deepest
            else (self._cut(state, self.deepest), self.deepest)
        )

    def _split(self, before: int, token: int) -> int:
        """The state of exactly the longest substring of ``before`` and the token."""
        wide = self.following[before][token]
        if self.lengths[before] + 1 == self.lengths[wide]:
            return wide
        narrow = self._new(dict(self.following[wide]), self.lengths[before] + 1, self.counts[wide])
        self.newest[narrow] = self.newest[wide]
        self.links[narrow], self.links[wide] = self.links[wide], narrow
        while before >= 0 and self.following[before].get(token) == wide:
            self.following[before][token] = narrow
            before = self.links[before]
        return narrow

    def _new(self, following: dict[int, int], length: int, count: int) -> int:
        self.following.append(following)
        self.links.append(0)
        self.lengths.append(length)
        self.counts.append(count)
        self.newest.append(0)
        return len(self.lengths) - 1


def continuations(automaton: SuffixAutomaton, match: Match, shortest: int) -> dict[int, float]:
    """Weigh what followed a match: the likeliest tokens, and the share of each.

    There are none of a match of fewer than ``shortest`` tokens, or that nearly anything follows.
    """
    state, matched = match
    following = automaton.following[state]
    if matched < shortest or not 0 < len(following) <= SETTINGS.varied:
        return {}
    counts, newest = automaton.counts, automaton.newest
    latest = max(newest[after] for after in following.values())
    weights = {
        token: counts[after] + (SETTINGS.recent if newest[after] == latest else 0.0)
        for token, after in following.items()
        if token != SETTINGS.separator
    }
    total = sum(weights.values()) + SETTINGS.unseen
    if len(weights) > SETTINGS.widest:
        weights = dict(sorted(weights.items(), key=lambda pair: -pair[1])[: SETTINGS.widest])
    return {token: weight / total for token, weight in weights.items()}
