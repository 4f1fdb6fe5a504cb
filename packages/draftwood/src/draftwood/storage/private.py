"""Copies of files that nobody else writes to."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from draftwood.storage.atomic import explain_write_errors
from draftwood.storage.home import home


@contextmanager
def private_copy(path: Path) -> Iterator[Path]:
    """Copy a file for as long as the context lasts; mappings of it stay valid.

    The copy has no name in any folder, so nothing is left of it when the process ends. On file
    systems that share blocks it takes no space.

    Raises:
        OSError: where there is no room for it.
    """
    with path.open("rb") as original, explain_write_errors(home()):
        home().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home()) as copy:
            _fill(copy, original)
            yield Path(f"/dev/fd/{copy.fileno()}")


def _fill(copy: BinaryIO, original: BinaryIO) -> None:
    with suppress(OSError):  # between file systems, and on some of them
        while os.copy_file_range(original.fileno(), copy.fileno(), 1 << 30):
            pass
    # from where that came to
    copy.seek(place := os.lseek(copy.fileno(), 0, os.SEEK_CUR))
    original.seek(place)
    shutil.copyfileobj(original, copy, 1 << 20)
    copy.flush()
