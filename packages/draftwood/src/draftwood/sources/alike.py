"""Draft copies of what followed the newest token where the model was in a state like this one."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from draftwood.models.verified import DraftRequest
from draftwood.sources.base import require_width
from draftwood.sources.source import (
    Candidates,
    Evidence,
    NativeSource,
    SourceSession,
    TargetUpdate,
)
from draftwood.sources.suffix import UNSEEN, WIDEST
from draftwood.validation import positive

BITS = 256
"""Of a state that are kept at most: whether a dimension is above its mean over the prompt."""

STRENGTHS = 8
"""Kinds of evidence, by how many bits agree beyond those of a chance pair."""

NEAREST = 256
"""Newest places of a token that are compared."""

MATCHED, WORTH = 16, 8
"""Tokens before the place that count where they agree too, and how many bits each is worth."""

HALVING = 8.0
"""Bits less that make a place count half."""

LEAST = 32
"""Places are left out that agree by so many bits less than the best."""


class CAlikeSettings(ctypes.Structure):
    """``AlikeSettings`` of native/sources/alike.h."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("unseen", "halving")),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("layer", "strengths", "nearest")),
        *((name, ctypes.c_int32) for name in ("matched", "worth", "least", "widest")),
    )


@dataclass(frozen=True)
class Alike:
    """What followed the newest token at earlier places where the target's state was like this one.

    AdaPLD (2026, arXiv:2606.05742) and Oilbird (2026, arXiv:2608.03839). States are compared that
    led to the token: the last that the target computed before it. Of a state some bits are kept, 40
    bytes per token with all else, so that places are compared in nanoseconds.

    Differs from the papers: every place counts, by how much its state agrees and by how many tokens
    before it do, as one source among others; draft tokens deeper in the tree follow the places that
    are left. Half of the layers is where states tell most.

    Args:
        layer: whose input is the state.
        width: numbers of a state.
    """

    name: ClassVar[str] = "alike"
    reads_logits: ClassVar[bool] = False
    layer: int
    width: int

    def __post_init__(self) -> None:
        positive("width", [self.width])
        if self.layer < 0:
            raise ValueError(f"layer must be at least 0, got {self.layer}")

    def start(self, request: DraftRequest) -> SourceSession:
        require_width(self.name, self.width, request.target.model)
        return _AlikeSession(self)

    def native(self) -> NativeSource:
        settings = CAlikeSettings(
            unseen=UNSEEN,
            halving=HALVING,
            width=self.width,
            layer=self.layer,
            strengths=STRENGTHS,
            nearest=NEAREST,
            matched=MATCHED,
            worth=WORTH,
            least=LEAST,
            widest=WIDEST,
        )
        return NativeSource(
            self.name, settings, tuple(_kinds()), hidden=(self.layer,), width=self.width
        )


def _kinds() -> list[Evidence]:
    return [Evidence(Alike.name, strength) for strength in range(1, STRENGTHS + 1)]


Places = list[tuple[int, int]]
"""Places of a token, and how many bits agree there."""


class _AlikeSession:
    def __init__(self, config: Alike) -> None:
        self.layer, self.hidden = config.layer, (config.layer,)
        self.bits = min(BITS, config.width)
        self.read = np.arange(self.bits) * config.width // self.bits  # dimensions
        self.kinds = _kinds()
        self.mean: np.ndarray | None = None
        self.text: list[int] = []
        self.sketches: list[int | None] = []  # of the states at each token
        self.places: dict[int, list[int]] = {}

    def learn(self, news: TargetUpdate) -> None:
        accepted = news.accepted
        sketches: Sequence[int | None] = [None] * len(accepted.path)
        if accepted.output is not None:
            sketches = self._sketched(accepted.output.hidden[self.layer][list(accepted.path)])
        for token, sketch in zip(accepted.tokens, sketches, strict=True):
            self.places.setdefault(token, []).append(len(self.text))
            self.text.append(token)
            self.sketches.append(sketch)

    def _sketched(self, states: Tensor) -> list[int]:
        rows = states.cpu().double().numpy()[:, self.read]
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
