"""Draft along a text that is given as what the answer may be."""

import ctypes
from dataclasses import dataclass
from typing import ClassVar

from draftwood.models.verified import DraftRequest, PredictedText
from draftwood.native import library
from draftwood.sources.source import Evidence, NativeSource

TRUST = (0.2, 0.5, 0.3, 0.7, 0.8, 0.92, 0.97, 0.985)
"""Chance of the next token before evidence: elsewhere, at the start, then as more tokens agree."""
REACH = (32, 256, 1 << 31)
"""Tokens from the departure within which a match of 1, 2 and 3 tokens counts."""
STRENGTH, DECAY = 2.0, 0.98  # trials that trust before evidence is worth; what a trial leaves
LEAST = 0.1  # of trust, below which nothing is said
LOOK_AHEAD, LOOK_BACK = 64, 16  # places of a token that are looked at
START = 2  # tokens that the first one of the prediction counts as
SURE, FAR = 4, 16  # tokens that must agree, and one more for so many tokens from the departure
SUREST = 16  # enough at any distance; more tokens count as this


class CPredictionSettings(ctypes.Structure):
    """``PredictionSettings`` of native/sources/prediction.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("tokens", "trust", "reach", "followed")),
        *((name, ctypes.c_double) for name in ("strength", "decay", "least")),
        ("length", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("look_ahead", "look_back")),
        *((name, ctypes.c_int32) for name in ("start", "sure", "far", "surest")),
    )


@dataclass(frozen=True, eq=False)
class PredictionSource:
    """The next tokens of a given text, for as long as the answer follows it.

    Predicted outputs, as OpenAI's API has them since 2024. After a departure the newest tokens are
    looked for in the text: the longest match counts, and of equal ones the nearest to the place
    where the answer departed, so that lines may be put in, taken out or replaced. How far the text
    is trusted is learnt by how many tokens agree; where it is never right it says nothing.

    Args:
        prediction: the text, which also counts what became of it.
    """

    name: ClassVar[str] = "prediction"
    reads_logits: ClassVar[bool] = False
    prediction: PredictedText

    def native(self, request: DraftRequest) -> NativeSource:
        tokens = self.prediction.tokens
        held = (ctypes.c_int32 * len(tokens))(*tokens)
        arrays = (held, library.doubles(TRUST), library.integers(REACH), self.prediction.counts)
        settings = CPredictionSettings(
            *map(ctypes.addressof, arrays),
            *(STRENGTH, DECAY, LEAST, len(tokens), LOOK_AHEAD, LOOK_BACK),
            *(START, SURE, FAR, SUREST),
        )
        return NativeSource(self.name, settings, kinds(), arrays)


def kinds() -> tuple[Evidence, ...]:
    """Kinds of evidence, by how far the text is followed."""
    return tuple(Evidence(PredictionSource.name, level) for level in range(len(TRUST)))
