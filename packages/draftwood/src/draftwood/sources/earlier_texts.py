"""Draft copies of what followed in texts of earlier requests."""

import ctypes
import threading
from dataclasses import dataclass, field
from typing import ClassVar
from weakref import ref

from draftwood.models.verified import DraftRequest
from draftwood.native.drafting import SharedState
from draftwood.sources.base import kinds_of
from draftwood.sources.source import Candidates, NativeSource, SourceSession, TargetUpdate
from draftwood.sources.suffix import (
    BREAK,
    DEEPEST,
    CMatchSettings,
    Match,
    SuffixAutomaton,
    deepest,
    match_settings,
    opinions_on,
)
from draftwood.validation import positive


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
        if self.younger is None and self.automaton.length > self.max_tokens - kept:
            self.younger = SuffixAutomaton(self.deepest)
        for automaton in filter(None, (self.automaton, self.younger)):
            for token in (*text, BREAK):
                automaton.append(token)
        text.clear()
        while self.automaton.length > self.max_tokens:  # requests under way keep the old one
            self.automaton = self.younger or SuffixAutomaton(self.deepest)
            self.younger = None


def kept_tokens(max_tokens: int) -> int:
    """Tokens that are remembered on, once there were more than those."""
    return max_tokens // 3


class CEarlierTextsSettings(ctypes.Structure):
    """``EarlierTextsSettings`` of native/sources/earlier_texts.h."""

    _fields_ = (
        ("match", CMatchSettings),
        *((name, ctypes.c_int64) for name in ("max_tokens", "kept_tokens")),
    )


@dataclass(frozen=True, eq=False)
class EarlierTexts:
    """What followed the longest match of the newest tokens in texts of earlier requests.

    Both prompts and answers are searched. The global tree of SuffixDecoding (Oliaro et al. 2024,
    arXiv:2411.04975). Tokens stay exact, but how fast they come then depends on earlier requests;
    and their texts stay in memory, so give each user a drafter of their own.

    Args:
        max_tokens: tokens remembered, in C++ some 50 bytes each, in Python 1 kB and more.
        longest: matches of so many tokens and more count alike.
        shortest: shorter matches draft nothing.
    """

    name: ClassVar[str] = "earlier-texts"
    reads_logits: ClassVar[bool] = False
    max_tokens: int = 100_000
    longest: int = 8
    shortest: int = 2
    _memory: list[Memory] = field(default_factory=list, init=False, repr=False)
    _native_memory: list[SharedState] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        positive("max_tokens, longest and shortest", [self.max_tokens, self.longest, self.shortest])
        self._memory.append(Memory(self.max_tokens, deepest(self.longest)))

    def start(self, request: DraftRequest) -> SourceSession:
        return _EarlierTextsSession(self, self._memory[0])

    def native(self) -> NativeSource:
        settings = CEarlierTextsSettings(
            match_settings(self.longest, self.shortest),
            self.max_tokens,
            kept_tokens(self.max_tokens),
        )
        if not self._native_memory:  # where two threads add one, both take the first
            self._native_memory.append(SharedState(self.name, settings))
        return NativeSource(
            self.name,
            settings,
            tuple(kinds_of(self.name, self.longest)),
            self._native_memory[0],
        )


class _EarlierTextsSession:
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
