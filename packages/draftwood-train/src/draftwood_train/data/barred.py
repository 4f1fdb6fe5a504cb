"""Keep prompts apart: those of the measurements, and those that are held out.

A prompt is known by the hash of its words and by each run of 13 words, the length by which overlap
of training and test data is commonly judged (Brown et al. 2020, arXiv:2005.14165).
"""

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

RUN = 13
HELD_OUT_OF = 50  # one prompt of so many is held out: 2 %
_WORD = re.compile(r"\w+")
_FACTORS = np.random.default_rng(0).integers(1, 1 << 63, RUN, dtype=np.uint64) | np.uint64(1)


@lru_cache(maxsize=1 << 17)
def _number(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def words(text: str) -> list[str]:
    """The words of a text, without case and punctuation."""
    return _WORD.findall(text.lower())


@lru_cache(maxsize=256)
def digest(text: str) -> int:
    """Hash of 63 bits of a text's words, or of the text itself if it has none."""
    return _number(" ".join(words(text)) or text.strip()) >> 1


def is_held_out(text: str) -> bool:
    """True if the prompt belongs to the held-out split, by its hash alone."""
    return digest(text) % HELD_OUT_OF == 0


@lru_cache(maxsize=256)
def runs(text: str) -> frozenset[int]:
    """Hashes of each run of 13 words."""
    numbers = np.array([_number(word) for word in words(text)], dtype=np.uint64)
    if len(numbers) < RUN:
        return frozenset()
    windows = np.lib.stride_tricks.sliding_window_view(numbers, RUN)
    return frozenset((windows * _FACTORS).sum(1, dtype=np.uint64).tolist())


class Known:
    """Prompts that others are compared with."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._digests: set[int] = set()
        self._runs: set[int] = set()
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        self._digests.add(digest(text))
        self._runs |= runs(text)

    def holds(self, text: str) -> bool:
        """True if this very prompt is known."""
        return digest(text) in self._digests

    def shares_a_run(self, text: str) -> bool:
        """True if it has 13 words in a row in common with a known prompt."""
        return not self._runs.isdisjoint(runs(text))


class Bars:
    """Admit each prompt once, and no training prompt that overlaps with held-out or measured ones.

    Args:
        measured: prompts of the measurements, which nothing may overlap with.
    """

    def __init__(self, measured: Iterable[str] = ()) -> None:
        self._measured = Known(measured)
        self._held_out, self._training = Known(), Known()

    def admits(self, text: str) -> bool:
        """True if the prompt may be used; if so it counts as used from then on."""
        own, other = self._training, self._held_out
        if is_held_out(text):
            own, other = other, own
        if (
            self._measured.holds(text)
            or own.holds(text)
            or self._measured.shares_a_run(text)
            or other.shares_a_run(text)
        ):
            return False
        own.add(text)
        return True
