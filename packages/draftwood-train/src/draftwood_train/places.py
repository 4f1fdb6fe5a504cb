"""Places that trainings write their models and checkpoints to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from draftwood.storage.atomic import explain_write_errors, hold
from draftwood_train.data.shards import LOCK


def require_output(
    folder: Path, is_one: Callable[[Path], bool], what: str, goes_on: bool = False
) -> None:
    """Refuse an output folder that holds what a training should not replace.

    Args:
        is_one: whether a folder holds a model of the kind that is trained.
        what: such a model is called.
        goes_on: whether it is this training's own.

    Raises:
        ValueError: for such a folder, and for a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not is_one(folder):
        raise ValueError(f"{folder} holds something else than {what}; name another folder")
    if not goes_on:
        raise ValueError(f"there is {what} in {folder} already; name a new folder, or delete it")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other trainings from a folder of checkpoints, which is made where it is missing.

    A folder that was made for nothing is removed.

    Raises:
        OSError: where another training goes on there, or the disk refuses.
    """
    taken = OSError(f"another process trains in {folder}; wait for it, or name another output")
    is_new = not folder.exists()
    with explain_write_errors(folder, "name another output"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = hold(folder / LOCK, taken)
    try:
        yield
    finally:
        with suppress(OSError):
            if is_new and [each.name for each in folder.iterdir()] == [LOCK]:
                (folder / LOCK).unlink()
                folder.rmdir()
        lock.release()


def require_resumed(folder: Path, begun: bool, resume: bool) -> None:
    """Refuse to begin anew in a folder of checkpoints whose training was begun.

    Raises:
        ValueError: with how to go on.
    """
    if begun and not resume:
        raise ValueError(
            f"{folder} holds a training that was begun; go on with --resume, or delete it"
        )
