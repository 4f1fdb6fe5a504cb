"""The session of the nearest states: native/sources/nearest_state.cpp."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from draftwood.arrays import as_array
from draftwood.sources.auto.suffix import UNSEEN, WIDEST
from draftwood.sources.nearest_state import (
    BITS,
    HALVING,
    LEAST,
    MATCHED,
    NEAREST,
    STRENGTHS,
    WORTH,
    NearestState,
    kinds,
)
from draftwood.sources.source import Candidates, TargetUpdate

Places = list[tuple[int, int]]
"""Places of a token, and how many bits agree there."""


class NearestStateSession:
    def __init__(self, config: NearestState) -> None:
        self.layer, self.hidden = config.layer, (config.layer,)
        self.bits = min(BITS, config.width)
        self.read = np.arange(self.bits) * config.width // self.bits  # dimensions
        self.kinds = kinds()
        self.mean: np.ndarray | None = None
        self.text: list[int] = []
        self.sketches: list[int | None] = []  # of the states at each token
        self.places: dict[int, list[int]] = {}

    def learn(self, news: TargetUpdate) -> None:
        accepted = news.accepted
        sketches: Sequence[int | None] = [None] * len(accepted.path)
        if accepted.output is not None:
            sketches = self._sketched(accepted.output.states(self.layer)[list(accepted.path)])
        for token, sketch in zip(accepted.tokens, sketches, strict=True):
            self.places.setdefault(token, []).append(len(self.text))
            self.text.append(token)
            self.sketches.append(sketch)

    def _sketched(self, states: Any) -> list[int]:
        rows = as_array(states)[:, self.read].astype(np.float64)
        if self.mean is None:
            self.mean = np.add.reduce(rows, axis=0) / len(rows)
        packed = np.packbits(rows > self.mean, axis=1, bitorder="little")
        return [int.from_bytes(row.tobytes(), "little") for row in packed]

    def begin(self, root: int) -> Places:
        here = self.sketches[-1] if self.sketches else None
        if here is None:
            return []
        found: Places = []
        for place in self.places.get(root, [])[-NEAREST:]:
            before = self.sketches[place - 1] if place else None
            if before is not None:
                agreed = self.bits - (before ^ here).bit_count() + WORTH * self._matched(place)
                found.append((place, agreed))
        best = max((agreed for _, agreed in found), default=0)
        return [each for each in found if each[1] >= best - LEAST]

    def _matched(self, place: int) -> int:
        """Tokens before a place that also stand before the root."""
        text, count = self.text, 0
        while count < min(MATCHED, place) and text[place - 1 - count] == text[-1 - count]:
            count += 1
        return count

    def advance(self, state: Places, token: int) -> Places:
        following = [(place + 1, agreed) for place, agreed in state if place + 1 < len(self.text)]
        return [each for each in following if self.text[each[0]] == token]

    def candidates(self, state: Places) -> list[Candidates]:
        best = max((agreed for _, agreed in state), default=0)
        weights: dict[int, float] = {}
        for place, agreed in state:
            if place + 1 < len(self.text):
                token = self.text[place + 1]
                weights[token] = weights.get(token, 0.0) + 2.0 ** ((agreed - best) / HALVING)
        if not weights:
            return []
        total = sum(weights.values()) + UNSEEN
        if len(weights) > WIDEST:
            weights = dict(sorted(weights.items(), key=lambda pair: -pair[1])[:WIDEST])
        above = max(0, 2 * best - self.bits)
        kind = self.kinds[min(STRENGTHS - 1, above * STRENGTHS // self.bits)]
        return [(kind, {token: weight / total for token, weight in weights.items()})]
