"""Memory: how much this process can still take, and in how large pages."""

import ctypes
import gc
import re
import sys
from contextlib import suppress
from pathlib import Path

MARGIN = 1.05
"""Factor on the bytes of weights, for keys, values and intermediate results."""
ROOT = Path("/")
LARGE_PAGE = 1 << 21
"""Bytes of a large page."""
_HUGE = 14  # MADV_HUGEPAGE of Linux


def available_memory(root: Path = ROOT) -> int | None:
    """Bytes that this process can still take: of the machine, and of the limits set on it.

    File caches count as free. None if the system does not say.
    """
    found = [_of_machine(root), _of_addresses(root), *_of_groups(root)]
    return min((each for each in found if each is not None), default=None)


def is_lack_of_memory(error: Exception) -> bool:
    """True if memory ran out; on a CPU PyTorch raises no error of its own for this."""
    of_pytorch = isinstance(error, RuntimeError)
    return isinstance(error, MemoryError) or (
        of_pytorch and ("memory" in str(error) or type(error).__name__ == "OutOfMemoryError")
    )


class LackOfMemoryError(MemoryError):
    """Weights certainly do not fit.

    Args:
        what: they are of.
        needed: bytes.
        left: bytes that are available.
    """

    def __init__(self, what: str, needed: int, left: int) -> None:
        super().__init__(
            f"{what} needs {_gigabytes(needed)} GB of memory and {_gigabytes(left)} GB are"
            " available; end other programs, raise the memory limit or take a smaller model"
        )
        self.needed, self.left = needed, left


def require_memory(size: int, what: str) -> None:
    """Raise LackOfMemoryError if ``size`` bytes, and a little more, certainly do not fit."""
    left, needed = available_memory(), int(size * MARGIN)
    if left is not None and needed > left:
        gc.collect()  # a model that was dropped may wait for it
        give_back_memory()
        left = available_memory()
    if left is not None and needed > left:
        raise LackOfMemoryError(what, needed, left)


def prefer_large_pages(address: int, size: int) -> None:
    """Ask the system for large pages, so that long reads seldom wait for addresses to be looked up.

    Call it before the first use, as pages are allocated when first written. Does nothing for little
    memory and on other systems.

    Args:
        address: of the memory.
        size: of it in bytes.
    """
    start, end = -(-address // LARGE_PAGE), (address + size) // LARGE_PAGE
    if sys.platform == "linux" and start < end:
        # advice: a system that does not take it goes on with small pages
        place, length = ctypes.c_void_p(start * LARGE_PAGE), (end - start) * LARGE_PAGE
        ctypes.CDLL(None).madvise(place, ctypes.c_size_t(length), _HUGE)


def give_back_memory() -> None:
    """Give the system what was freed; glibc keeps it for later else."""
    if sys.platform == "linux":
        with suppress(AttributeError):  # of another C library
            ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f}" if size < 10**11 else f"{size / 1e9:.0f}"


def _of_machine(root: Path) -> int | None:
    found = re.search(r"^MemAvailable: *(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    return None if found is None else int(found[1]) * 1024


def _of_addresses(root: Path) -> int | None:
    """Bytes of addresses that the process's own limit leaves, which ``ulimit -v`` sets."""
    limits, status = _text(root / "proc/self/limits"), _text(root / "proc/self/status")
    most = re.search(r"^Max address space +(\d+) ", limits, re.MULTILINE)
    used = re.search(r"^VmSize:\s+(\d+) kB", status, re.MULTILINE)
    return max(0, int(most[1]) - int(used[1]) * 1024) if most and used else None


def _of_groups(root: Path) -> list[int | None]:
    """Bytes that the limits of control groups leave: the process's own group's and its parents'."""
    left = list[int | None]()
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if kinds == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "")
        elif "memory" in kinds.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        own = base / path.lstrip("/")
        left += [
            _of_group(folder, *names)
            for folder in (own, *own.parents)
            if folder.is_relative_to(base)
        ]
    return left


def _of_group(folder: Path, limit: str, usage: str, prefix: str) -> int | None:
    """Bytes that one group's limit leaves; files that are only kept in memory make room."""
    most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
    if not (most.isdecimal() and used.isdecimal()):
        return None
    told = dict(re.findall(r"^(\w+) (\d+)$", _text(folder / "memory.stat"), re.MULTILINE))
    files = sum(int(told.get(f"{prefix}{name}_file", 0)) for name in ("active", "inactive"))
    return max(0, int(most) - int(used) + files)


def _text(path: Path) -> str:
    """Content of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
