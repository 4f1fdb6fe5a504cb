"""Calls of the library that go on beside those of other threads."""

import torch

from draftwood.native.library import available, library
from draftwood.native.threads import use_own


def work_beside(threads: int) -> None:
    """Let the calling thread's passes run beside those of other threads, with ``threads`` threads.

    Passes of other threads take turns, as each would use all cores. PyTorch's operations of the
    calling thread use as many threads.
    """
    use_own(threads)
    torch.set_num_threads(threads)
    if available():
        library().draftwood_work_beside(True)
