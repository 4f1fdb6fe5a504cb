"""A gate that lets work through while nothing else runs."""

import threading
from time import monotonic

CALM_SECONDS = 0.1
"""Seconds without work after which learning goes on: requests that follow each other never meet
it.
"""


class EndedError(Exception):
    """The gate was closed; raised in the thread that waits at it."""


class IdleGate:
    """Counts what runs, and holds back whoever calls ``pause`` until nothing does.

    Args:
        calm: seconds since the last of it ended.
    """

    def __init__(self, calm: float = CALM_SECONDS) -> None:
        self.calm = calm
        self._changed = threading.Condition()
        self._running, self._since, self._closed = 0, -calm, False

    def enter(self) -> None:
        """Note that something runs from now on."""
        with self._changed:
            self._running += 1

    def leave(self) -> None:
        """Note that it has ended."""
        now = monotonic()
        with self._changed:
            # in one go, as a finalizer of this thread may leave in the midst of any call
            self._running -= 1
            self._since = now
            self._changed.notify_all()

    def close(self) -> None:
        """End everyone who waits, or asks from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def pause(self) -> None:
        """Return at once where nothing runs, else wait until then.

        Raises:
            EndedError: once the gate is closed.
        """
        with self._changed:
            while not self._closed:
                left = self._since + self.calm - monotonic()
                if not self._running and left <= 0:
                    return
                self._changed.wait(None if self._running else left)
        raise EndedError
