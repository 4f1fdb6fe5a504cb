"""Where public data sets lie on this machine, and how their files are opened."""

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def data_folder(otherwise: str) -> Path:
    """The folder of data sets: ``$DRAFTWOOD_DATA``, else ``../shared/data`` beside a checkout.

    Args:
        otherwise: what else the user may do where there is none.

    Raises:
        FileNotFoundError: where there is none.
    """
    path = _place()
    if not path.is_dir():
        raise FileNotFoundError(
            f"there are no data sets at {path}; set DRAFTWOOD_DATA to their folder, {otherwise}"
        )
    return path


def has_data_folder() -> bool:
    """Whether there is one."""
    return _place().is_dir()


def _place() -> Path:
    beside = Path(__file__).resolve().parents[4] / "shared" / "data"
    return Path(os.environ.get("DRAFTWOOD_DATA") or beside)


def read_text(path: Path) -> str:
    """A file in UTF-8, packed by gzip where its name ends so."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def read_lines(path: Path) -> list[str]:
    """Its lines, without empty ones at both ends."""
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
