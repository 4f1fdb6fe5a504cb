"""Files and folders written whole or not at all."""

import errno
import hashlib
import json
import os
import platform
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from draftwood.storage.progress import progress

if TYPE_CHECKING:
    from filelock import BaseFileLock

MANIFEST, LOCK = "draftwood.json", ".lock"
FRESH = 600.0  # seconds in which a file that is being written changes
REPLACING = re.compile(r"\.\d+-\d+\.partial$")
"""End of the name of a folder that ``replace_folder`` fills, which holds no lock."""


Facts = dict[str, str | None]  # what a manifest says of the weights, see ``weight_facts``


FREE, OPEN = "free some space, or ", "make that folder writable, or "
CANNOT_WRITE = {
    errno.ENOSPC: ("the disk is full", FREE),
    errno.EDQUOT: ("the disk quota is used up", FREE),
    errno.EACCES: ("permission denied", OPEN),
    errno.EPERM: ("permission denied", OPEN),
    errno.EROFS: ("the file system is read-only", OPEN),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", ""),
    errno.EEXIST: ("a file of that name is in the way", ""),
}
"""Why files cannot be written, and what helps besides writing elsewhere."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class NoRoomError(OSError):
    """Raised where a disk is full, or what one may use of it."""


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def publish(
    destination: Path,
    source: str,
    build: Callable[[Path], Facts | None],
    is_whole: Callable[[Path], bool] = Path.is_dir,
    waits: bool = True,
) -> Path:
    """Make the folder `destination`, whole or not at all.

    `build` fills an empty folder, which is then renamed in one step. The manifest holds `source`,
    the origin, and the facts about the weights that `build` returns. Only one process builds a
    destination at a time; the others wait for it and take its result. An existing folder that is
    not `is_whole` is replaced. Raises OSError if the disk cannot take the folder, and TimeoutError
    if another process is at it and this one does not wait.
    """
    with explain_write_errors(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        with locked(destination, waits):
            if is_whole(destination):
                return destination
            _remove_leftovers(destination)
            partial = _partial(destination)
            before = _partial(destination.with_name(f"{destination.name}.old"))
            partial.mkdir()
            try:
                facts = build(partial)
                write_manifest(partial, source, facts or {})
                if destination.is_dir():
                    os.replace(destination, before)
                os.replace(partial, destination)
                shutil.rmtree(before, ignore_errors=True)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    return destination


def remove_folder(folder: Path, waits: bool = True) -> None:
    """Remove a folder that `publish` made, at once for whoever looks for it.

    Args:
        waits: for another process that is at it.

    Raises:
        OSError: where the disk refuses.
        TimeoutError: if another process is at it and this one does not wait.
    """
    with explain_write_errors(folder), locked(folder, waits):
        gone = _partial(folder)
        _remove(gone)
        os.replace(folder, gone)
        if gone.is_symlink():  # what it leads to was not made here
            gone.unlink()
        else:
            shutil.rmtree(gone)


def _remove(left: Path) -> None:
    """Remove what was left somewhere, as far as that goes."""
    if left.is_symlink():
        left.unlink()
    shutil.rmtree(left, ignore_errors=True)


def _partial(destination: Path) -> Path:
    return destination.with_name(f".{destination.name}.partial")


def _lock_path(destination: Path) -> Path:
    return destination.with_name(f".{destination.name}.lock")


@contextmanager
def locked(destination: Path, waits: bool = True) -> Iterator[None]:
    """Keep other processes from what is made at a place.

    Args:
        waits: for one that is at it.

    Raises:
        TimeoutError: if another one is at it and this one does not wait.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(_lock_path(destination))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not waits:
            raise
        with progress(f"waiting for another process that makes {destination.name}"):
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def locked_where_possible(destination: Path | None) -> Iterator[None]:
    """Keep other processes from what is made at a place, if there is one and its disk allows."""
    with ExitStack() as stack:
        if destination is not None:
            with suppress(OSError):
                destination.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(destination))
        yield


def hold(file: Path, taken: Exception) -> "BaseFileLock":
    """Keep other processes from what a file stands for, until the lock is released.

    Of the processes that torchrun starts the first one holds it.

    Args:
        file: in a folder that is there.
        taken: is raised where another process holds it.

    Raises:
        OSError: where the disk refuses.
    """
    from filelock import FileLock, Timeout

    from draftwood.storage.ranks import rank

    lock = FileLock(file, timeout=0, thread_local=False)
    try:
        if not rank():
            lock.acquire()
    except Timeout:
        raise taken from None
    return lock


def _remove_leftovers(destination: Path) -> None:
    """Remove half-made folders whose maker is dead.

    Its lock being free proves that. Our own lock is held by us. Folders that ``replace_folder``
    fills stay.
    """
    from filelock import FileLock, Timeout

    for partial in destination.parent.glob(".*.partial"):
        owner = destination.with_name(partial.name[1 : -len(".partial")])
        if owner != destination and REPLACING.search(partial.name):
            continue
        lock = nullcontext() if owner == destination else FileLock(_lock_path(owner), timeout=0)
        try:
            with lock:  # of a folder that is being replaced, another one's maker removes it too
                _remove(partial)
        except Timeout:
            continue


def _remove_parts(destination: Path) -> None:
    """Remove what dead processes left beside a place that they wrote; put back what they moved.

    What is new stays: on a disk that machines share, another one's process may be at it.
    """
    for left in destination.parent.glob(f".{escape(destination.name)}.*-*"):
        mark, _, what = left.name[len(destination.name) + 2 :].partition(".")
        process = mark.partition("-")[0]
        if not process.isdecimal() or _runs(int(process)):
            continue
        with suppress(FileNotFoundError):  # another process may clean up too
            if what == "old" and not destination.exists():
                os.replace(left, destination)
            elif time.time() - left.stat().st_mtime < FRESH:
                continue
            elif left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def replace_folder(destination: Path, build: Callable[[Path], None]) -> Path:
    """Make or replace the folder `destination`, whole or not at all.

    `build` fills an empty folder, which is then renamed. Raises OSError when the disk cannot take
    the folder.
    """
    destination = destination.resolve()  # where a link leads
    mark = f"{os.getpid()}-{threading.get_ident()}"
    partial, before = (
        destination.with_name(f".{destination.name}.{mark}.{what}") for what in ("partial", "old")
    )
    with explain_write_errors(destination, "write to another folder"):
        destination.parent.mkdir(parents=True, exist_ok=True)
        _remove_parts(destination)
        try:
            partial.mkdir()
            build(partial)
            if destination.exists():
                os.replace(destination, before)
            os.replace(partial, destination)
        finally:
            if before.exists() and not destination.exists():
                os.replace(before, destination)
            for leftover in (partial, before):
                shutil.rmtree(leftover, ignore_errors=True)
    return destination


@contextmanager
def explain_write_errors(
    destination: Path, elsewhere: str = "set DRAFTWOOD_HOME to another folder"
) -> Iterator[None]:
    """Turn errors of writing `destination` into one OSError that says what to do.

    It is a NoRoomError where the disk is full.

    Args:
        elsewhere: how the user can have it written to another place.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        code = getattr(error, "errno", None)
        # safetensors reports the number only inside its text
        if code is None and (told := re.search(r"os error (\d+)\)", str(error))):
            code = int(told[1])
        # what is missing is a file of whoever writes, unless the folder itself could not be made
        misses_folder = code == errno.ENOENT and not destination.parent.is_dir()
        if code not in CANNOT_WRITE and not misses_folder:
            if code is None or isinstance(error, OSError):
                raise
            raise OSError(code, os.strerror(code), str(destination)) from error
        why, cure = CANNOT_WRITE.get(code or 0, ("its folder cannot be made", ""))
        kind = NoRoomError if code in NO_ROOM else OSError
        raise kind(f"cannot write {destination}: {why}; {cure}{elsewhere}") from error


def write_file(
    path: Path,
    content: str | Callable[[Path], object],
    errors: Callable[[Path], AbstractContextManager[None]] = explain_write_errors,
) -> None:
    """Write a file so that nobody ever sees it half-written: beside its place, then renamed.

    Where a link stands, what it leads to is written. A file that was there keeps who may read it.

    Args:
        content: a text, or what writes the file of a given name.
        errors: context that explains errors of the disk.

    Raises:
        OSError: where the disk refuses, and for what is no file; the message says what to do.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise OSError(f"cannot write {path}: it is no regular file; name another one")
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    with errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_parts(path)
        try:
            if isinstance(content, str):
                partial.write_text(content, encoding="utf-8")
            else:
                content(partial)
            with suppress(FileNotFoundError):
                partial.chmod(path.stat().st_mode & 0o777)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def for_its_owner(text: str) -> Callable[[Path], None]:
    """Content for ``write_file`` that its owner alone may read."""

    def put(path: Path) -> None:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)

    return put


def write_manifest(folder: Path, source: str, facts: Facts) -> None:
    """Write `draftwood.json`.

    It names the origin, the size and SHA-256 of every file, and the versions that made them.
    """
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    manifest = {"source": source, **facts, "files": files, "versions": _versions()}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def is_intact(folder: Path, name: str) -> bool:
    """True if a file has the SHA-256 that the manifest of its folder says.

    Raises:
        PermissionError: where this user may not read them.
    """
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return sha256(folder / name) == files[name]["sha256"]
    except PermissionError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _versions() -> dict[str, str]:
    from importlib import metadata  # takes long

    versions = {"python": platform.python_version()}
    for package in ("draftwood", "torch", "transformers", "gguf", "safetensors", "tokenizers"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions
