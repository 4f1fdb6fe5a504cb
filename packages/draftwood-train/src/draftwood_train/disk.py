"""Room on the disk, asked for before anything long begins."""

import shutil
from pathlib import Path


def require_room(folder: Path, size: int, what: str) -> None:
    """Raise OSError where the disk of a folder has no room for so many bytes."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    free = shutil.disk_usage(there).free
    if free < size:
        raise OSError(
            f"{what} need {size / 1e6:.0f} MB in {there}, {free / 1e6:.0f} MB are free; free some"
            " space, or name another folder"
        )
