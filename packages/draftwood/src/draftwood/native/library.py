"""The C++ library: compiled once per kind of CPU and kept on disk, or prebuilt; its functions as
Python sees them.
"""

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import platform
import shutil
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from ctypes import c_double, c_int64
from pathlib import Path

from draftwood.native.compiler import (
    FLAGS,
    LIBRARY,
    WHOLE_COPIES,
    CompilerError,
    compile_library,
    compiler,
    is_unwanted,
    own_flags,
    processor,
    source_files,
)
from draftwood.native.functions import declare
from draftwood.native.structures import STRUCTURES
from draftwood.storage.atomic import MANIFEST, Facts, is_intact, publish
from draftwood.storage.home import home
from draftwood.storage.progress import counted_progress

MOST_KEPT = 8
TARGET = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"


def integers(values: Sequence[int]) -> ctypes.Array[c_int64]:
    """Numbers or addresses in an array."""
    return (c_int64 * len(values))(*values)


def doubles(values: Sequence[float]) -> ctypes.Array[c_double]:
    """Numbers in an array."""
    return (c_double * len(values))(*values)


def freed_with(
    owner: object, free: Callable[..., object], *given: object, kept: object = None
) -> None:
    """Have the library free something once its owner in Python is gone, but not at exit.

    Args:
        free: takes ``given``.
        kept: in memory until then, as what is freed reads it.
    """
    weakref.finalize(owner, _free, free, given, kept).atexit = False


def _free(free: Callable[..., object], given: tuple[object, ...], kept: object) -> None:
    free(*given)


@functools.cache
def library() -> ctypes.CDLL:
    """Load the library, compiling it if necessary.

    If it cannot be compiled, a prebuilt one of the package serves, but for ``CXX=none``. Warns if
    ``$CXX`` or ``$CXXFLAGS`` had no effect on it.

    Raises:
        CompilerError: where no prebuilt library runs on this CPU and there is no C++ compiler, it
            fails, or the disk does not take what it makes; with ``CXX=none`` always.
        RuntimeError: where a structure has another size here than in C++.
    """
    found = _load()
    declare(found)
    _check_structures(found)
    return found


def _load() -> ctypes.CDLL:
    try:
        return _opened(_compiled())
    except (CompilerError, OSError) as error:
        from draftwood.native import prebuilt

        level = None if is_unwanted() else prebuilt.best()
        if level is None:
            raise CompilerError(str(error)) from error
        try:
            found = ctypes.CDLL(str(level.path))
        except OSError as other:  # for instance an older glibc
            raise CompilerError(f"{error}; the prebuilt library fails: {other}") from other
        if unused := [f"${name}" for name in ("CXX", "CXXFLAGS") if os.environ.get(name)]:
            warnings.warn(
                f"{' and '.join(unused)} had no effect, as the prebuilt library {level.name} serves"
                f" where none can be compiled: {error}",
                stacklevel=3,
            )
        return found


def _opened(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:  # for instance a disk that is mounted noexec
        raise CompilerError(
            f"the compiled library cannot be loaded ({error}); set DRAFTWOOD_HOME to a folder on a"
            " disk from which programs may run"
        ) from error


def _compiled() -> Path:
    """Path of the library for this CPU; compiled if it is missing or damaged."""
    folder = home() / "kernels" / key()
    try:
        is_whole = _is_whole(folder)
    except PermissionError as error:
        raise CompilerError(
            f"{error.filename} may not be read; make it readable, or set DRAFTWOOD_HOME to another"
            " folder"
        ) from error
    if not is_whole:
        if folder.is_dir():
            warnings.warn(f"{folder / LIBRARY} is damaged; it is compiled again", stacklevel=4)
        publish(folder, f"the C++ library for {platform.machine()}", _compile, _is_whole)
        _forget_old(folder.parent)
    with contextlib.suppress(OSError):  # a disk that only reads
        os.utime(folder)
    return folder / LIBRARY


def _is_whole(folder: Path) -> bool:
    return is_intact(folder, LIBRARY)


def _compile(folder: Path) -> Facts:
    """Compile into a folder; returns how long that took, for the next time."""
    last, begun = _last_seconds(folder.parent), time.monotonic()
    told = "" if last is None else f" (last time took {last:.0f} s)"
    with counted_progress(f"compiling for this CPU, once{told}") as tell:
        compile_library(folder / LIBRARY, [TARGET], tell)
    return {"seconds": f"{time.monotonic() - begun:.1f}"}


def _last_seconds(folder: Path) -> float | None:
    """Seconds that compiling the newest library here took; None if not recorded."""
    found = list[tuple[float, float]]()
    for path in folder.glob(f"*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            seconds = float(json.loads(path.read_text(encoding="utf-8"))["seconds"])
            found.append((path.stat().st_mtime, seconds))
    return max(found)[1] if found else None


def _check_structures(compiled: ctypes.CDLL) -> None:
    """Check that C++ and Python agree on the sizes of structures."""
    for number, structure in enumerate(STRUCTURES):
        size = compiled.draftwood_structure_size(number)
        if size != ctypes.sizeof(structure):
            raise RuntimeError(
                f"{structure.__name__} of structures.py must have {size} bytes, as"
                f" {structure.__name__[1:]} has in C++, but it has {ctypes.sizeof(structure)}; give"
                " both the same fields in the same order"
            )
    if compiled.draftwood_structure_size(len(STRUCTURES)):
        raise RuntimeError("STRUCTURES of structures.py must name all of draftwood_structure_size")


@functools.cache
def available() -> bool:
    """True if there is a library for this machine; the first call may compile it."""
    try:
        library()
    except CompilerError:
        return False
    return True


def why_missing() -> str:
    """Say in a clause why there is no library where it is not ``available``, and the cure."""
    try:
        library()
    except CompilerError as error:
        return str(error)
    return "it was missing until now; start again"


def instructions(of_bytes: bool) -> str | None:
    """Instruction set for products of 8-bit integers, or of floats; None for plain loops."""
    found = library().draftwood_instructions(of_bytes)
    return None if found is None else found.decode()


def _forget_old(folder: Path) -> None:
    """Keep the few libraries that were used last; another CPU, compiler or version of draftwood
    makes one of its own.
    """
    found = list[tuple[float, Path]]()
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may have removed it
            if (path / LIBRARY).is_file():
                found.append((path.stat().st_mtime, path))
    for _, path in sorted(found, reverse=True)[MOST_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)


@functools.cache
def key() -> str:
    """Name the library by everything that it is made from."""
    sources = [path.read_text(encoding="utf-8") for path in source_files()]
    identity = [
        *FLAGS,
        *WHOLE_COPIES,
        TARGET,
        *own_flags(),
        *sources,
        compiler() or "",
        platform.machine(),
        processor(),
    ]
    return hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
