"""Share the memory that threads free."""

import ctypes
import sys

_MOST_ARENAS = -8  # M_ARENA_MAX of glibc


def share_free_memory(arenas: int = 2) -> bool:
    """Let threads take memory from few arenas, before they are started.

    glibc keeps up to eight arenas per core, and memory freed in one cannot be used by threads of
    another, so a process of many threads grows. False if the C library has no arenas.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and mallopt(_MOST_ARENAS, arenas) == 1
