"""Bounded buffer of texts that a head learns from."""

import random
import threading

from draftwood.learning.texts import WatchedText

HELD_OUT = 0.1
"""Newest share of the buffer, on which new weights are judged."""


class LearningBuffer:
    """Keeps watched texts in the order in which they came, within a limit of memory.

    Beyond it one of the older nine tenths is dropped by chance, so that old places stay for replay.
    Any thread may use it.

    Args:
        limit: most bytes.

    Attributes:
        added: rows of answers that ever came in.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a learning buffer takes at least one byte, got {limit}")
        self.limit, self.added, self._bytes = limit, 0, 0
        self._texts: list[WatchedText] = []
        self._random, self._lock = random.Random(0), threading.Lock()

    def add(self, text: WatchedText) -> None:
        """Take in a text; one that is larger than the whole buffer is passed over."""
        if text.memory > self.limit:
            return
        with self._lock:
            self._texts.append(text)
            self.added += text.answer_rows
            self._bytes += text.memory
            while self._bytes > self.limit:
                older = max(1, int((1 - HELD_OUT) * len(self._texts)))
                self._bytes -= self._texts.pop(self._random.randrange(older)).memory

    @property
    def texts(self) -> list[WatchedText]:
        """All texts, the oldest first."""
        with self._lock:
            return list(self._texts)

    @property
    def memory(self) -> int:
        """Bytes of all texts."""
        return self._bytes

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
