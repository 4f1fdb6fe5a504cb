"""Find and open public data sets on this machine."""

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def data_folder(otherwise: str) -> Path:
    """The folder of data sets, which ``$DRAFTWOOD_DATA`` names.

    Args:
        otherwise: alternative for the user if there is none.

    Raises:
        FileNotFoundError: where it names none.
    """
    named = os.environ.get("DRAFTWOOD_DATA")
    if not named:
        raise FileNotFoundError(
            f"no folder of data sets is named; set $DRAFTWOOD_DATA to one, {otherwise}"
        )
    path = Path(named).expanduser()
    if not path.is_dir():
        raise FileNotFoundError(
            f"there is no folder {named}, which $DRAFTWOOD_DATA names; set it to the folder of data"
            f" sets, {otherwise}"
        )
    return path


def data_file(file: str | Path, otherwise: str) -> Path:
    """A file of the folder of data sets.

    Raises:
        FileNotFoundError: where there is no folder, or the file is not in it.
    """
    path = data_folder(otherwise) / file
    if not path.is_file():
        raise FileNotFoundError(
            f"the data set {file} is not in $DRAFTWOOD_DATA ({path.parent}); put it there,"
            f" {otherwise}"
        )
    return path


def names_data_folder() -> bool:
    """True if ``$DRAFTWOOD_DATA`` names a folder, be it there or not."""
    return bool(os.environ.get("DRAFTWOOD_DATA"))


def read_text(path: Path) -> str:
    """Read a file in UTF-8, unpacked if its name ends in ``.gz``."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def read_lines(path: Path) -> list[str]:
    """Lines of a file, without empty ones at both ends."""
    return read_text(path).strip("\n").split("\n")


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON Lines.

    Raises:
        ValueError: for a line that is no JSON; the message names it.
    """
    for number, line in enumerate(read_lines(path), start=1):
        try:
            yield json.loads(line)
        except ValueError:
            raise ValueError(f"{path}:{number} is no JSON; fetch the data set again") from None
