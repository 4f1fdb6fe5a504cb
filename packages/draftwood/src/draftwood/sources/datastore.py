"""Draft copies of what followed the newest tokens in texts of a file."""

import ctypes
from dataclasses import dataclass
from typing import ClassVar

from draftwood.models.verified import DraftRequest
from draftwood.sources.auto.suffix import DEEPEST, CMatchSettings, match_settings
from draftwood.sources.source import NativeSource, kinds_of
from draftwood.sources.token_index import TokenIndex
from draftwood.validation import positive

SAMPLED = 256
"""Places of a match that are counted at most, evenly over those that there are."""


class CDatastoreSettings(ctypes.Structure):
    """``DatastoreSettings`` of native/sources/datastore.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("starts", "rows", "following", "shared")),
        *((name, ctypes.c_int32) for name in ("tokens", "vocab_size", "sampled")),
        ("match", CMatchSettings),
    )


@dataclass(frozen=True, eq=False)
class Datastore:
    """Copies of what followed the longest match of the newest tokens in texts that do not change.

    REST (He et al. 2023, arXiv:2311.08252), SSSD (Marzollo et al. 2024, arXiv:2411.05894). Tokens
    stay exact, but how fast they come then tells something of the texts.

    Differs from the papers: continuations count one by one, each evidence for one token, instead of
    being drafted as they stand; and a match is looked up token by token, so that each look-up takes
    a few searches however long it is.

    Args:
        index: the texts, sorted.
        longest: matches of so many tokens and more count the same.
        shortest: shorter matches draft nothing.
    """

    name: ClassVar[str] = "datastore"
    reads_logits: ClassVar[bool] = False
    index: TokenIndex
    longest: int = 8
    shortest: int = 2

    def __post_init__(self) -> None:
        positive("longest and shortest", [self.longest, self.shortest])
        if self.longest > DEEPEST:
            raise ValueError(f"longest must be at most {DEEPEST}, got {self.longest}")

    def native(self, request: DraftRequest) -> NativeSource:
        index = self.index
        arrays = (index.starts, index.rows, index.following, index.shared)
        settings = CDatastoreSettings(
            *(array.ctypes.data for array in arrays),
            index.tokens,
            index.vocab_size,
            SAMPLED,
            match_settings(self.longest, self.shortest),
        )
        return NativeSource(self.name, settings, tuple(kinds_of(self.name, self.longest)), index)
