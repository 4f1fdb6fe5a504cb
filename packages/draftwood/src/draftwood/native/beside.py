"""Calls of the library that go on beside those of other threads."""

import torch

from draftwood.native.library import available, library
from draftwood.native.threads import use_own


def work_beside(threads: int) -> None:
    """From now on the calling thread's runs go on while other threads' do, with so many threads.

    Others take turns, as each of them would use all cores. PyTorch's operations of the calling
    thread take as many.
    """
    use_own(threads)
    torch.set_num_threads(threads)
    if available():
        library().draftwood_work_beside(True)
