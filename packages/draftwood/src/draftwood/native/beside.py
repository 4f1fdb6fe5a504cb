"""Calls of the library that go on beside those of other threads."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from draftwood.native.library import available, library
from draftwood.native.threads import use_own


def work_beside(threads: int) -> None:
    """Let the calling thread's passes run beside those of other threads, with ``threads`` threads.

    Passes of other threads take turns, as each would use all cores. PyTorch's operations of the
    calling thread use as many threads.
    """
    use_own(threads)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
    if available():
        library().draftwood_work_beside(True)


@contextmanager
def threads_of_torch_kept() -> Iterator[None]:
    """Keep PyTorch's threads for threads to come, which take over the last number that was set."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    yield
    if torch:
        torch.set_num_threads(before)
