"""Find and open public data sets on this machine."""

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwood.storage.atomic import sha256
from draftwood.storage.home import expanded


def _data_folder(otherwise: str) -> Path:
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
    path = expanded(named)
    if not path.is_dir():
        raise FileNotFoundError(
            f"there is no folder {named}, which $DRAFTWOOD_DATA names; set it to the folder of data"
            f" sets, {otherwise}"
        )
    return path


@dataclass(frozen=True)
class DataFile:
    """A file of a data set."""

    path: Path

    @staticmethod
    def folder_is_named() -> bool:
        """True if ``$DRAFTWOOD_DATA`` names a folder, be it there or not."""
        return bool(os.environ.get("DRAFTWOOD_DATA"))

    @classmethod
    def named(cls, file: str | Path, otherwise: str) -> "DataFile":
        """A file of the folder of data sets.

        Args:
            otherwise: alternative for the user if there is none.

        Raises:
            FileNotFoundError: where there is no folder, or the file is not in it.
        """
        path = _data_folder(otherwise) / file
        if not path.is_file():
            raise FileNotFoundError(
                f"the data set {file} is not in $DRAFTWOOD_DATA ({path.parent}); put it there,"
                f" {otherwise}"
            )
        return cls(path)

    @property
    def sha256(self) -> str:
        """The SHA-256 of its content, in hex."""
        return sha256(self.path)

    def text(self) -> str:
        """Its content in UTF-8, unpacked if its name ends in ``.gz``."""
        data = self.path.read_bytes()
        return (gzip.decompress(data) if self.path.suffix == ".gz" else data).decode()

    def lines(self) -> list[str]:
        """Its lines, without empty ones at both ends."""
        return self.text().strip("\n").split("\n")

    def rows(self) -> Iterator[dict[str, Any]]:
        """The objects of a file of JSON Lines.

        Raises:
            ValueError: for a line that is no JSON; the message names it.
        """
        for number, line in enumerate(self.lines(), start=1):
            try:
                yield json.loads(line)
            except ValueError:
                raise ValueError(
                    f"{self.path}:{number} is no JSON; fetch the data set again"
                ) from None
