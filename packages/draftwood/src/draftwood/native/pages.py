"""Large pages of memory, so that long reads seldom wait for addresses to be looked up."""

import ctypes
import sys

from torch import Tensor

SIZE = 1 << 21
_HUGE = 14  # MADV_HUGEPAGE of Linux


def prefer_large_pages(tensor: Tensor) -> None:
    """Ask the system for large pages for a CPU tensor. Call it before the first use, as pages are
    allocated when first written. Does nothing for small tensors and on other systems.
    """
    start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()
    start, end = -(-start // SIZE) * SIZE, end // SIZE * SIZE
    if tensor.device.type == "cpu" and sys.platform == "linux" and start < end:
        # advice: a system that does not take it goes on with small pages
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _HUGE)
