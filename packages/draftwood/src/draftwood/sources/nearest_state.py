"""Draft nearest-state copies: what followed the token where the model was in a like state."""

import ctypes
from dataclasses import dataclass
from typing import ClassVar

from draftwood.models.verified import DraftRequest
from draftwood.sources.auto.suffix import UNSEEN, WIDEST
from draftwood.sources.source import Evidence, NativeSource
from draftwood.validation import positive

BITS = 256
"""Most bits kept of a state: whether a dimension is above its mean over the prompt."""

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


class CNearestStateSettings(ctypes.Structure):
    """``NearestStateSettings`` of native/sources/nearest_state.cpp."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("unseen", "halving")),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("layer", "strengths", "nearest")),
        *((name, ctypes.c_int32) for name in ("matched", "worth", "least", "widest")),
    )


@dataclass(frozen=True)
class NearestState:
    """Copies of what followed the newest token at the places with the nearest states.

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

    name: ClassVar[str] = "nearest-state"
    reads_logits: ClassVar[bool] = False
    layer: int
    width: int

    def __post_init__(self) -> None:
        positive("width", [self.width])
        if self.layer < 0:
            raise ValueError(f"layer must be at least 0, got {self.layer}")

    def native(self, request: DraftRequest) -> NativeSource:
        settings = CNearestStateSettings(
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
            self.name, settings, tuple(kinds()), hidden=(self.layer,), width=self.width
        )


def kinds() -> list[Evidence]:
    """Kinds of evidence, by how many bits agree."""
    return [Evidence(NearestState.name, strength) for strength in range(1, STRENGTHS + 1)]
