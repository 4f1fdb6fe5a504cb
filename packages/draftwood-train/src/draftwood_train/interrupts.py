"""Ctrl-C between the steps of a training, so that it goes on as if it had not been stopped."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until what is done inside is done.

    Raises:
        KeyboardInterrupt: then, if it came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held, asked = signal.getsignal(signal.SIGINT), list[bool]()
    signal.signal(signal.SIGINT, lambda *_: asked.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, held)
    if asked:
        raise KeyboardInterrupt
