"""Folders of benchmark runs for a report, and files of the report.

Whatever is wrong is told with its cure.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwood_bench.records.files import (
    LOCK,
    PACKED,
    RECORDS,
    RUN,
    TREE,
    Record,
    RunInfo,
    read_records,
    read_run,
    write_whole,
)

Drawn = dict[str, Any]  # one step of ``tree.json``
FILES = (RUN, RECORDS, PACKED, TREE, LOCK)
FIELDS = ("step", "context_tail", "tokens", "parents", "path", "emitted")


@dataclass(frozen=True)
class MeasuredRun:
    """A folder of ``draftwood bench``.

    Attributes:
        folder: where it is.
        run: what all records have in common.
        records: at least one.
        trees: steps with their draft trees by method.
    """

    folder: Path
    run: RunInfo
    records: list[Record]
    trees: dict[str, list[Drawn]]


def read(folder: Path) -> MeasuredRun:
    """Read a run from its folder.

    Raises:
        FileNotFoundError: where there is no such folder or no run in it.
        ValueError: for broken files, naming file and line, and for a run without records.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"there is no folder {folder}; name one that `draftwood bench ... --output DIR` wrote"
        )
    try:
        run = read_run(folder)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error}; name a folder that `draftwood bench ... --output DIR` wrote"
        ) from None
    records = read_records(folder)
    if not records:
        raise ValueError(
            f"{folder} holds no records yet, so there is nothing to show; let its run go on:"
            f" {run.command}"
        )
    return MeasuredRun(folder, run, records, _trees(folder / TREE))


def _trees(path: Path) -> dict[str, list[Drawn]]:
    """Steps by method; none where there is no file."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
        whole = all(
            all(name in step for name in FIELDS) for steps in found.values() for step in steps
        )
    except (ValueError, TypeError, AttributeError):
        whole, found = False, {}
    if not whole:
        raise ValueError(
            f"{path} describes no draft trees; delete it, and the page goes without them"
        )
    return found


def require_apart(written: Sequence[Path], folders: Sequence[Path]) -> None:
    """Refuse files of a report that would take the place of records, or of each other.

    Raises:
        ValueError: naming the file.
    """
    kept = {
        (folder / name).resolve()
        for folder in folders
        for name in (*FILES, *(each.name for each in folder.glob("*.json*")))
    }
    places = [path.resolve() for path in written]
    for path, place in zip(written, places, strict=True):
        if place in kept:
            raise ValueError(f"{path} holds what was measured; choose another file")
        if places.count(place) > 1:
            raise ValueError(f"{path} cannot be both page and tables; give --markdown another file")


def write(path: Path, text: str) -> None:
    """Write a file of the report, whole or not at all; its folder is made where it is not there.

    Raises:
        OSError: where that cannot be.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        number = error.errno or getattr(error.__cause__, "errno", None)
        reason = os.strerror(number).lower() if number else str(error)
        raise OSError(f"cannot write {path}: {reason}; choose another file") from None


def distinct(folders: Sequence[Path]) -> list[Path]:
    """Each folder once, in order."""
    return list({folder.resolve(): folder for folder in folders}.values())
