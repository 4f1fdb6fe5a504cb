"""Choose the number of threads, by PyTorch's setting, the CPUs of this process and its container's
quota.
"""

import functools
import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from draftwood.native.library import available, library

MOST = 256  # as many as the library takes

_own = threading.local()  # of threads whose calls go on beside those of others
_in_force: list[int] = []  # of the others, one for each thing that goes on beside them
_before_fork: list[int] = []  # PyTorch's number in the process that this one was forked from


def threads() -> int:
    """Threads for the next call of the library: PyTorch's number, limited by the CPU quota and by
    other calls in progress.
    """
    own: int | None = getattr(_own, "count", None)
    return usable(_in_force) if own is None else own


def usable(limits: Sequence[int] = ()) -> int:
    """Threads that would run at once without anything beside them, within these limits."""
    told = torch.get_num_threads()
    if told == 1 and _before_fork:
        told = _before_fork[0]
    return max(1, min(told, cores(), *limits))


def cores() -> int:
    """CPUs that this process may keep busy, by its affinity and its container's quota."""
    return min(cpus(), of_quota())


@functools.cache
def survive_forks() -> None:
    """Keep processes forked from this one working: PyTorch on one thread, the library on as many.

    PyTorch would wait forever for its parent's threads; the library starts new ones.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    if torch.get_num_threads() > 1:
        _before_fork[:] = [torch.get_num_threads()]
        torch.set_num_threads(1)


def work_beside(count: int) -> None:
    """Let the calling thread's passes run beside those of other threads, with ``count`` threads.

    Passes of other threads take turns, as each would use all cores. PyTorch's operations of the
    calling thread use as many threads.
    """
    _own.count = count
    torch.set_num_threads(count)
    if available():
        library().draftwood_work_beside(True)


@contextmanager
def threads_of_torch_kept() -> Iterator[None]:
    """Keep PyTorch's threads for threads to come, which take over the last number that was set."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def limit_others(most: int) -> None:
    """At most so many threads for calls of threads without a number of their own, until
    ``lift_limit``.
    """
    _in_force.append(most)


def lift_limit(most: int) -> None:
    """Undo ``limit_others``."""
    _in_force.remove(most)


def cpus() -> int:
    """CPUs that the system lets this thread run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def of_quota() -> int:
    """Threads that the CPU quota of this process's container keeps busy; read once."""
    limit = quota(Path("/"))
    return MOST if math.isinf(limit) else math.ceil(limit)


def quota(root: Path) -> float:
    """CPU seconds per second that this process's control groups allow, in either version; infinite
    for no limit.

    Args:
        root: root of the system's files.
    """
    try:
        own = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        mounts = (root / "proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return math.inf
    groups = [line.split(":", 2)[1:] for line in own if line.count(":") > 1]
    limits = [math.inf]
    for line in mounts:
        place, _, kind = line.partition(" - ")
        top, mounted = place.split()[3:5]
        for controllers, path in groups:
            if _belong(controllers, kind):
                limits += _limits(root / mounted.lstrip("/"), _within(path, top))
    return min(limits)


def _belong(controllers: str, mount: str) -> bool:
    """True if groups with these controllers are the ones on a mount, and limit CPU time."""
    if mount.startswith("cgroup2 "):
        return controllers == ""
    return mount.startswith("cgroup ") and all(
        "cpu" in names.split(",") for names in (controllers, mount.split()[-1])
    )


def _within(path: str, top: str) -> Path:
    """A group's path below the one that is mounted; that one itself where the group lies elsewhere
    (containers).
    """
    try:
        return Path(path).relative_to(top)
    except ValueError:
        return Path()


def _limits(mounted: Path, path: Path) -> list[float]:
    """CPU limits of a group and of each group around it."""
    return [_limit(mounted / group) for group in (path, *path.parents)]


def _limit(group: Path) -> float:
    """CPU limit of one group: ``cpu.max`` of version 2, or the two files of version 1."""
    try:
        if (group / "cpu.max").is_file():
            given, period = (group / "cpu.max").read_text(encoding="utf-8").split()
        else:
            given, period = (
                (group / f"cpu.cfs_{part}_us").read_text(encoding="utf-8")
                for part in ("quota", "period")
            )
        return math.inf if given == "max" or int(given) <= 0 else int(given) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
