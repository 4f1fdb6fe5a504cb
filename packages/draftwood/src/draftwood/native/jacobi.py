"""Rows of the last pass, and chains drawn from them in whole steps; see jacobi.h."""

from collections.abc import Sequence
from ctypes import addressof, byref, c_int32

from draftwood.native import library
from draftwood.native.structures import CJacobiSettings


class JacobiRows:
    """The rows that the last pass of one text gave for its next places.

    Args:
        vocabulary: entries of a row.
        window: most rows that are kept.
        backs: by place from the first draft token on, tokens back to the one that a place repeats
            which no pass has seen; 0 for any token. The last holds for all further places.
        text: tokens before the root, as far back as ``backs`` reach.
    """

    def __init__(
        self, vocabulary: int, window: int, backs: Sequence[int], text: Sequence[int]
    ) -> None:
        numbers, before = (c_int32 * len(backs))(*backs), library.integers(text)
        settings = CJacobiSettings(
            backs=addressof(numbers),
            text=addressof(before),
            places=len(backs),
            length=len(text),
            vocabulary=vocabulary,
            window=window,
        )
        compiled = library.library()
        self.handle: int = compiled.draftwood_jacobi_new(byref(settings))
        library.freed_with(self, compiled.draftwood_jacobi_free, self.handle)
        self.levels: int = compiled.draftwood_jacobi_levels(self.handle)
