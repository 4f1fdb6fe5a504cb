"""Draft copies of what followed the longest earlier match of the newest tokens."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from draftwood.models.verified import DraftRequest
from draftwood.sources.base import kinds_of
from draftwood.sources.source import (
    Candidates,
    Evidence,
    NativeSource,
    SourceSession,
    TargetUpdate,
)
from draftwood.validation import positive

# tokens of a match; longer ones count as their last so many, as in SuffixDecoding's trees
DEEPEST = 64
BREAK = -1  # between texts that do not follow each other; never drafted
VARIED = 32  # a match followed by more different tokens than this says nothing
WIDEST = 4  # continuations of a match that are drafted
RECENT = 1.0  # occurrences that the newest one is worth besides its own
UNSEEN = 0.2  # occurrences that all the continuations not seen are worth
INDEXED = 32  # where more tokens follow a state, C++ finds them by a table


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

    def __init__(self, deepest: int = DEEPEST) -> None:
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


Match = tuple[int, int]
"""A state of the automaton and how many of the newest tokens it represents."""


@dataclass(frozen=True)
class Suffix:
    """What followed the longest match of the newest tokens in prompt and answer.

    Continuations weigh by how often and how recently they followed. The search of SuffixDecoding
    (Oliaro et al. 2024, arXiv:2411.04975) with the automaton of SAM-Decoding (Hu et al. 2024,
    arXiv:2411.10666).

    Args:
        longest: matches of so many tokens and more count alike.
        shortest: shorter matches draft nothing.
    """

    name: ClassVar[str] = "suffix"
    reads_logits: ClassVar[bool] = False
    longest: int = 8
    shortest: int = 1

    def __post_init__(self) -> None:
        positive("longest and shortest", [self.longest, self.shortest])

    def start(self, request: DraftRequest) -> SourceSession:
        return _SuffixSession(self)

    def native(self) -> NativeSource:
        return NativeSource(
            self.name,
            match_settings(self.longest, self.shortest),
            tuple(kinds_of(self.name, self.longest)),
        )


class _SuffixSession:
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


class CMatchSettings(ctypes.Structure):
    """``MatchSettings`` of native/automaton.h."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("recent", "unseen")),
        *((name, ctypes.c_int32) for name in ("deepest", "longest", "shortest")),
        *((name, ctypes.c_int32) for name in ("varied", "widest", "separator", "indexed")),
    )


def match_settings(longest: int, shortest: int) -> CMatchSettings:
    """How matches are searched and what is made of them, for C++."""
    return CMatchSettings(
        recent=RECENT,
        unseen=UNSEEN,
        deepest=deepest(longest),
        longest=longest,
        shortest=shortest,
        varied=VARIED,
        widest=WIDEST,
        separator=BREAK,
        indexed=INDEXED,
    )


def deepest(longest: int) -> int:
    """Tokens of the longest match where those of ``longest`` count alike."""
    return max(DEEPEST, longest)


def opinions_on(
    automaton: SuffixAutomaton, match: Match, kinds: Sequence[Evidence], shortest: int
) -> list[Candidates]:
    """The likeliest continuations of a match.

    There are none of a match that is too short, or that nearly anything follows.
    """
    state, matched = match
    following = automaton.following[state]
    if matched < shortest or not 0 < len(following) <= VARIED:
        return []
    counts, newest = automaton.counts, automaton.newest
    latest = max(newest[after] for after in following.values())
    weights = {
        token: counts[after] + (RECENT if newest[after] == latest else 0.0)
        for token, after in following.items()
        if token != BREAK
    }
    total = sum(weights.values()) + UNSEEN
    if len(weights) > WIDEST:
        weights = dict(sorted(weights.items(), key=lambda pair: -pair[1])[:WIDEST])
    if not weights:
        return []
    kind = kinds[min(matched, len(kinds) - 1)]
    return [(kind, {token: weight / total for token, weight in weights.items()})]
