"""Bounded buffer of texts that a head learns from."""

import random
import threading
from queue import SimpleQueue

from draftwood.learning.texts import WatchedText

HELD_OUT = 0.1
"""Newest share of the buffer, on which new weights are judged."""


class LearningBuffer:
    """Keeps watched texts in the order in which they came, within a limit of memory.

    Beyond it one of the older nine tenths is dropped by chance, so that old places stay for replay.
    Any thread may use it, and a finalizer may add to it in the midst of any of its calls.

    Args:
        limit: most bytes.

    Attributes:
        memory: bytes of all texts.
        added: rows of answers that ever came in.
        largest_missed: bytes of the largest text that was passed over; 0 for none.
        is_full: whether a text was ever dropped.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a learning buffer takes at least one byte, got {limit}")
        self.limit, self.added, self.memory, self.largest_missed = limit, 0, 0, 0
        self._texts: tuple[WatchedText, ...] = ()
        self.is_full = False
        self._came = SimpleQueue[WatchedText]()
        self._random, self._lock = random.Random(0), threading.Lock()

    def add(self, text: WatchedText) -> None:
        """Take in a text; one that is larger than the whole buffer is passed over."""
        if text.memory > self.limit:
            self.largest_missed = max(self.largest_missed, text.memory)
            return
        self._came.put(text)
        # whoever holds the lock takes in what others put: to wait for it in a finalizer locks up
        while not self._came.empty() and self._lock.acquire(blocking=False):
            try:
                self._take_in()
            finally:
                self._lock.release()

    def _take_in(self) -> None:
        """Move what came to the texts, which change at once for whoever reads them."""
        while not self._came.empty():
            text = self._came.get()
            texts, memory = [*self._texts, text], self.memory + text.memory
            while memory > self.limit:
                older = max(1, int((1 - HELD_OUT) * len(texts)))
                memory -= texts.pop(self._random.randrange(older)).memory
                self.is_full = True
            self._texts, self.memory = tuple(texts), memory
            self.added += text.answer_rows

    @property
    def texts(self) -> list[WatchedText]:
        """All texts, the oldest first."""
        return list(self._texts)

    @property
    def rows(self) -> int:
        """Rows of answers."""
        return sum(text.answer_rows for text in self.texts)

    def split(self) -> tuple[list[WatchedText], list[WatchedText]]:
        """Split the texts into the older ones and the newest tenth, by rows of answers."""
        texts = self.texts
        left = HELD_OUT * sum(text.answer_rows for text in texts)
        place = len(texts)
        while place and left > 0:
            place -= 1
            left -= texts[place].answer_rows
        return texts[:place], texts[place:]
