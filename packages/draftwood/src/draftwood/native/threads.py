"""Choose the number of threads, by the user's setting, the CPUs of this process and its container's
quota; and by PyTorch's number, in a process that has imported it.
"""

import ctypes
import functools
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftwood.native.compiler import cpus
from draftwood.native.library import available, library

MOST = 256  # as many as the library takes
VARIABLE = "OMP_NUM_THREADS"
"""Variable of the environment that tells the number of threads, to PyTorch and others too."""
ROOT = Path("/")

_own = threading.local()  # of threads whose calls go on beside those of others
_in_force: list[int] = []  # of the others, one for each thing that goes on beside them
_before_fork: list[int] = []  # PyTorch's number in the process that this one was forked from


def threads() -> int:
    """Threads for the next call of the library: those allowed, limited by the CPU quota and by
    other calls in progress.
    """
    own: int | None = getattr(_own, "count", None)
    return usable(_in_force) if own is None else own


def usable(limits: Sequence[int] = ()) -> int:
    """Threads that would run at once without anything beside them, within these limits."""
    return max(1, min(allowed(), cores(), *limits))


def allowed() -> int:
    """Threads that this process may run, whatever the machine allows it.

    PyTorch's number where the process has imported it; else that of ``OMP_NUM_THREADS``, or one for
    each core.
    """
    torch = imported_torch()
    told = _of_environment() if torch is None else int(torch.get_num_threads())
    return _before_fork[0] if told == 1 and _before_fork else told


def set_threads(count: int) -> None:
    """Let passes run with so many threads, as far as the machine has cores for them.

    PyTorch runs with as many: now, or when it is imported, as ``OMP_NUM_THREADS`` says so then.

    Raises:
        ValueError: for a number below 1.
    """
    if count < 1:
        raise ValueError(f"passes run with at least one thread, got {count}")
    os.environ[VARIABLE] = str(count)
    if (torch := imported_torch()) is not None:
        torch.set_num_threads(count)


@contextmanager
def threads_set(count: int | None) -> Iterator[None]:
    """``set_threads`` within the context; None changes nothing."""
    if count is None:
        yield
        return
    before, told = allowed(), os.environ.get(VARIABLE)
    set_threads(count)
    try:
        yield
    finally:
        set_threads(before)
        os.environ.pop(VARIABLE)
        os.environ.update({} if told is None else {VARIABLE: told})


def imported_torch() -> Any:
    """PyTorch, if this process has imported it; else None. Never imports it."""
    found = sys.modules.get("torch")
    return found if hasattr(found, "set_num_threads") else None


def _of_environment() -> int:
    told = os.environ.get(VARIABLE, "").partition(",")[0].strip()
    return int(told) if told.isdecimal() and int(told) else cores_apart(ROOT)


@functools.cache
def cores_apart(root: Path) -> int:
    """Cores of the CPUs that this process may run on, read once: two CPUs of one core share it.

    Args:
        root: root of the system's files.
    """
    if not hasattr(os, "sched_getaffinity"):
        return cpus()
    folder = root / "sys/devices/system/cpu"
    return len({_siblings(folder / f"cpu{cpu}") for cpu in os.sched_getaffinity(0)})


def _siblings(cpu: Path) -> str:
    """CPUs of the same core, as the system lists them; the CPU alone where it lists none."""
    try:
        return (cpu / "topology/thread_siblings_list").read_text(encoding="utf-8")
    except OSError:
        return cpu.name


def cores() -> int:
    """CPUs that this process may keep busy, by its affinity and its container's quota."""
    return min(cpus(), of_quota())


@functools.cache
def survive_forks() -> None:
    """Keep processes forked from this one working: PyTorch on one thread, the library on as many.

    PyTorch, where it is imported, would wait forever for its parent's threads; the library starts
    new ones.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    torch = imported_torch()
    if torch is not None and torch.get_num_threads() > 1:
        _before_fork[:] = [torch.get_num_threads()]
        torch.set_num_threads(1)


def work_beside(count: int) -> None:
    """Let the calling thread's passes run beside those of other threads, with ``count`` threads.

    Passes of other threads take turns, as each would use all cores. PyTorch's operations of the
    calling thread use as many threads, where it is imported by now.
    """
    _own.count = count
    if (torch := imported_torch()) is not None:
        torch.set_num_threads(count)
    if available():
        library().draftwood_work_beside(True)


@contextmanager
def torch_alone() -> Iterator[None]:
    """Let PyTorch's operations of the calling thread run on one thread, and the library's calls on
    as many as before.

    Between calls of the library its threads wait for the next one a little: where PyTorch's want
    the same CPUs, each operation waits for them, and passes take up to ten times as long.

    Threads born meanwhile have as many as ever: ``torch.set_num_threads`` is no way, as they take
    over the last number that was set with it.
    """
    torch, own = imported_torch(), getattr(_own, "count", None)
    before, _own.count = torch.get_num_threads(), threads()
    set_openmp, set_mkl = _of_thread()
    set_openmp(1)
    before_in_mkl = set_mkl(1)
    try:
        yield
    finally:
        set_mkl(before_in_mkl)
        set_openmp(before)
        _own.count = own


@functools.cache
def _of_thread() -> tuple[Callable[[int], int], Callable[[int], int]]:
    """Functions under PyTorch that set the calling thread's number alone: OpenMP's, and MKL's,
    which returns the one before. ``int``, which sets nothing, where a build lacks them.
    """
    try:
        loaded = ctypes.PyDLL(imported_torch()._C.__file__)  # finds what PyTorch is linked with
    except OSError:
        return int, int
    names = "omp_set_num_threads", "MKL_Set_Num_Threads_Local"
    set_openmp, set_mkl = (getattr(loaded, name, int) for name in names)
    return set_openmp, set_mkl


@contextmanager
def threads_of_torch_kept() -> Iterator[None]:
    """Keep PyTorch's threads for threads to come, which take over the last number that was set."""
    if (torch := imported_torch()) is None:
        yield
        return
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


@functools.cache
def of_quota() -> int:
    """Threads that the CPU quota of this process's container keeps busy; read once."""
    limit = quota(ROOT)
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
