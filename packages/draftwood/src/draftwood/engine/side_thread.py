"""The thread in which drafts are made while the target runs."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from draftwood.native.beside import work_beside


class SideThread:
    """A thread that is there as long as some text drafts in it.

    Calls run one after the other. Nothing here ever waits for a call, as the garbage collector may
    end a text at any time, in this thread too.

    Args:
        threads: of the library and of PyTorch for what is called.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._lock = threading.RLock()  # the collector may come while it is held
        self._texts = 0
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def enter(self) -> int:
        """A text begins; the first one starts the thread. Gives the process that it began in."""
        with self._lock:
            if self._process != os.getpid():  # of a fork, which has none of its parent's threads
                self._process, self._texts, self._pool = os.getpid(), 0, None
            if self._pool is None:
                self._pool = self._started()
            self._texts += 1
            return self._process

    def leave(self, process: int) -> None:
        """A text that began in this process has ended; with the last one the thread ends."""
        if process != os.getpid():  # a fork's copy of its parent's text
            return
        with self._lock:
            self._texts -= 1
            if self._texts == 0 and self._pool is not None:
                pool, self._pool = self._pool, None
                pool.shutdown(wait=False)

    def call(self, act: Callable[[], None]) -> "Future[None]":
        """Let the thread call something, once it has done what came before."""
        assert self._pool is not None  # the text has entered
        return self._pool.submit(act)

    def _started(self) -> ThreadPoolExecutor:
        pool, before = ThreadPoolExecutor(1, "draftwood-drafts"), torch.get_num_threads()
        try:
            pool.submit(work_beside, self.threads).result()
        except BaseException:
            pool.shutdown(wait=False)
            raise
        torch.set_num_threads(before)  # of threads to come, which would take over the last number
        return pool
