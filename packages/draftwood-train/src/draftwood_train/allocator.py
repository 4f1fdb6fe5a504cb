"""Memory that the C library keeps between the steps of a training."""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # of glibc's malloc.h
_ALL, _AT_ONCE = 2**31 - 1, 2**28


def keep_freed_memory() -> bool:
    """Let glibc reuse large blocks instead of handing them back; False where it is not in use.

    A step frees and asks for tensors of tens of megabytes again and again. Pages that come fresh
    from the kernel are cleared one by one, which costs a training on the CPU a tenth of its time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    settings = {_MMAP_MAX: 0, _TRIM_THRESHOLD: _ALL, _TOP_PAD: _AT_ONCE}
    return all(mallopt(name, value) == 1 for name, value in settings.items())
