"""Memory in large pages for weights, which each forward pass reads once from end to end."""

import numpy as np

from draftwood.arrays import ALIGNMENT, address_of
from draftwood.storage.memory import LARGE_PAGE, prefer_large_pages

SLAB = 32 * LARGE_PAGE
"""Bytes asked of the system at once; what nobody writes to takes no memory."""


class LargePages:
    """Gives memory part after part. Most matrices are smaller than what systems put into large
    pages by themselves, and from small ones a pass of TinyLlama-1.1B takes a tenth longer: reading
    ahead ends with each page.

    A slab goes back to the system with its last part.
    """

    def __init__(self) -> None:
        self._slab, self._at = np.empty(0, np.uint8), 0

    def take(self, size: int) -> np.ndarray:
        """Hand out so many bytes, from a multiple of ``ALIGNMENT`` on."""
        if self._at + size > len(self._slab):
            self._slab, self._at = _slab(max(size, SLAB)), 0
        found = self._slab[self._at : self._at + size]
        self._at += size + -size % ALIGNMENT
        return found


def _slab(size: int) -> np.ndarray:
    memory = np.empty(size + LARGE_PAGE, np.uint8)
    prefer_large_pages(address_of(memory), memory.nbytes)
    return memory[-address_of(memory) % LARGE_PAGE :][:size]
