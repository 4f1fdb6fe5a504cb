"""Share the memory that threads free, and give it back."""

import ctypes
import sys

_MOST_ARENAS = -8  # M_ARENA_MAX of glibc
_ARENAS = 2


def share_free_memory() -> bool:
    """Let threads take memory from few arenas, before they are started.

    glibc keeps up to eight arenas per core, and memory freed in one cannot be used by threads of
    another, so a process of many threads grows. False if the C library has no arenas.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and mallopt(_MOST_ARENAS, _ARENAS) == 1


def return_free_memory() -> None:
    """Give memory that was freed back to the system, where the C library keeps it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
