"""Draft copies of what followed the longest earlier match of the newest tokens."""

import ctypes
from dataclasses import dataclass
from typing import ClassVar

from draftwood.models.verified import DraftRequest
from draftwood.sources.source import NativeSource, kinds_of
from draftwood.validation import positive

# tokens of a match; longer ones count as their last so many, as in SuffixDecoding's trees
DEEPEST = 64
BREAK = -1  # between texts that do not follow each other; never drafted
VARIED = 32  # a match followed by more different tokens than this says nothing
WIDEST = 4  # continuations of a match that are drafted
RECENT = 1.0  # occurrences that the newest one is worth besides its own
UNSEEN = 0.2  # occurrences that all the continuations not seen are worth
INDEXED = 32  # where more tokens follow a state, C++ finds them by a table


@dataclass(frozen=True)
class Suffix:
    """Copies of what followed the longest match of the newest tokens in prompt and answer.

    Continuations weigh by how often and how recently they followed. The search of SuffixDecoding
    (Oliaro et al. 2024, arXiv:2411.04975) with the automaton of SAM-Decoding (Hu et al. 2024,
    arXiv:2411.10666).

    Args:
        longest: matches of so many tokens and more count the same.
        shortest: shorter matches draft nothing.
    """

    name: ClassVar[str] = "suffix"
    reads_logits: ClassVar[bool] = False
    in_auto: ClassVar[int] = 1
    longest: int = 8
    shortest: int = 1

    def __post_init__(self) -> None:
        positive("longest and shortest", [self.longest, self.shortest])

    @property
    def settings(self) -> "CMatchSettings":
        """Settings of the search for matches, and of what is made of them."""
        return match_settings(self.longest, self.shortest)

    def native(self, request: DraftRequest) -> NativeSource:
        return NativeSource(self.name, self.settings, tuple(kinds_of(self.name, self.longest)))


class CMatchSettings(ctypes.Structure):
    """``MatchSettings`` of native/automaton.h."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("recent", "unseen")),
        *((name, ctypes.c_int32) for name in ("deepest", "longest", "shortest")),
        *((name, ctypes.c_int32) for name in ("varied", "widest", "separator", "indexed")),
    )


def match_settings(longest: int, shortest: int) -> CMatchSettings:
    """Say how matches are searched and what is made of them, for C++."""
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
    """Tokens of the longest match where those of ``longest`` count the same."""
    return max(DEEPEST, longest)
