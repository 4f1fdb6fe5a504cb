"""Draft copies of what followed in texts of earlier requests."""

import ctypes
from dataclasses import dataclass, field
from typing import ClassVar

from draftwood.models.verified import DraftRequest
from draftwood.native.drafting import SharedState
from draftwood.sources.auto.suffix import CMatchSettings, match_settings
from draftwood.sources.source import NativeSource, kinds_of
from draftwood.validation import positive


def kept_tokens(max_tokens: int) -> int:
    """Tokens that are remembered on, once there were more than those."""
    return max_tokens // 3


class CEarlierTextsSettings(ctypes.Structure):
    """``EarlierTextsSettings`` of native/sources/earlier_texts.cpp."""

    _fields_ = (
        ("match", CMatchSettings),
        *((name, ctypes.c_int64) for name in ("max_tokens", "kept_tokens")),
    )


@dataclass(frozen=True, eq=False)
class EarlierTexts:
    """Copies of what followed the longest match of the newest tokens in earlier requests' texts.

    Both prompts and answers are searched. The global tree of SuffixDecoding (Oliaro et al. 2024,
    arXiv:2411.04975). Tokens stay exact, but how fast they come then depends on earlier requests;
    and their texts stay in memory, so give each user a drafter of their own.

    Args:
        max_tokens: tokens remembered, some 50 bytes each.
        longest: matches of so many tokens and more count the same.
        shortest: shorter matches draft nothing.
    """

    name: ClassVar[str] = "earlier-texts"
    reads_logits: ClassVar[bool] = False
    max_tokens: int = 100_000
    longest: int = 8
    shortest: int = 2
    _memory: list[SharedState] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        positive("max_tokens, longest and shortest", [self.max_tokens, self.longest, self.shortest])

    def native(self, request: DraftRequest) -> NativeSource:
        settings = CEarlierTextsSettings(
            match_settings(self.longest, self.shortest),
            self.max_tokens,
            kept_tokens(self.max_tokens),
        )
        if not self._memory:  # where two threads add one, both take the first
            self._memory.append(SharedState(self.name, settings))
        return NativeSource(
            self.name,
            settings,
            tuple(kinds_of(self.name, self.longest)),
            self._memory[0],
        )
