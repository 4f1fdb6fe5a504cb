"""The session of a given text: native/sources/prediction.cpp."""

from bisect import bisect_left
from typing import NamedTuple

from draftwood.sources.prediction import (
    DECAY,
    FAR,
    LEAST,
    LOOK_AHEAD,
    LOOK_BACK,
    REACH,
    START,
    STRENGTH,
    SURE,
    SUREST,
    TRUST,
    PredictionSource,
    kinds,
)
from draftwood.sources.source import Candidates, TargetUpdate


class Cursor(NamedTuple):
    place: int = 0
    anchor: int = 0
    matched: int = 0
    newest: tuple[int, ...] = ()  # the last token first

    @property
    def level(self) -> int:
        if not self.matched:
            return 0 if self.anchor else 1
        return 2 + sum(self.matched > most for most in (1, 2, 3, 7, 15))


class PredictionSession:
    def __init__(self, config: PredictionSource) -> None:
        self.tokens, self.counts = config.prediction.tokens, config.prediction.counts
        self.places: dict[int, list[int]] = {}
        for place, token in enumerate(self.tokens):
            self.places.setdefault(token, []).append(place)
        self.followed: set[int] = set()
        self.cursor, self.begun = Cursor(), False
        self.hits, self.trials = [0.0] * len(TRUST), [0.0] * len(TRUST)

    def learn(self, news: TargetUpdate) -> None:
        for token in news.accepted.tokens if self.begun else ():
            self._judge(token)
            self.cursor = self.advance(self.cursor, token)
            self._mark()
        goes_on = self.cursor.level and self.cursor.place < len(self.tokens)
        following = self.tokens[self.cursor.place] if goes_on else -1
        self.counts[:] = len(self.followed), self.cursor.matched if self.begun else 0, following

    def begin(self, root: int) -> Cursor:
        self.begun = True
        return self.advance(self.cursor, root)

    def advance(self, state: Cursor, token: int) -> Cursor:
        at = state._replace(newest=(token, *state.newest)[: len(REACH)])
        if not at.level or self.tokens[at.place : at.place + 1] != (token,):
            return self._found(at)
        matched = min(at.matched + 1, SUREST) if at.matched else START
        at = at._replace(place=at.place + 1, matched=matched)
        sure = min(SUREST, SURE + abs(at.place - at.anchor) // FAR)
        return at._replace(anchor=at.place) if matched >= sure else at

    def candidates(self, state: Cursor) -> list[Candidates]:
        following, chance = self._expected(state), self._trusted(state.level)
        if not following or chance < LEAST:
            return []
        return [(kinds()[state.level], dict.fromkeys(following, chance / len(following)))]

    def _trusted(self, level: int) -> float:
        return (STRENGTH * TRUST[level] + self.hits[level]) / (STRENGTH + self.trials[level])

    def _expected(self, at: Cursor) -> list[int]:
        count = 1 if at.level else 2
        return list(dict.fromkeys(self.tokens[at.place : at.place + count]))

    def _judge(self, token: int) -> None:
        if following := self._expected(self.cursor):
            level = self.cursor.level
            self.hits[level] = self.hits[level] * DECAY + (token in following)
            self.trials[level] = self.trials[level] * DECAY + 1

    def _mark(self) -> None:
        place, matched = self.cursor.place, self.cursor.matched
        if matched >= 2:
            self.followed |= set(range(max(0, place - min(matched, len(REACH))), place))

    def _found(self, at: Cursor) -> Cursor:
        known = self.places.get(at.newest[0], [])
        here = bisect_left(known, at.anchor - 1)
        best: tuple[int, int, int] | None = None
        for place in known[max(0, here - LOOK_BACK) : here + LOOK_AHEAD]:
            behind, matched = place + 1, self._agreeing(at, place)
            away = behind - at.anchor if behind >= at.anchor else 2 * (at.anchor - behind)
            if away <= REACH[matched - 1] and (best is None or (-matched, away) < best[:2]):
                best = (-matched, away, behind)
        if best is None:
            return at._replace(place=at.anchor, matched=0)
        return at._replace(place=best[2], matched=-best[0])

    def _agreeing(self, at: Cursor, place: int) -> int:
        count = 1
        while count < len(at.newest) and count <= place:
            if self.tokens[place - count] != at.newest[count]:
                break
            count += 1
        return count
