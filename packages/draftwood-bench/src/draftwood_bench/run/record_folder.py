"""Folders of records of other packages' protocols: a run that was stopped goes on there."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from draftwood.storage.atomic import write_file

Record = TypeVar("Record")
"""A dataclass of texts and numbers."""
COMMITS = "commits"
"""Names the commits beside settings."""


@dataclass(frozen=True)
class RecordFolder(Generic[Record]):
    """Records of a protocol, a line each, beside the settings of their run.

    Attributes:
        folder: made where it is missing.
        protocol: names its files.
        kind: of the records.
        cure: of a folder that cannot go on.
    """

    folder: Path
    protocol: str
    kind: type[Record]
    cure: str = "give another folder"

    @property
    def file(self) -> Path:
        """File of the records."""
        return self.folder / f"{self.protocol}.jsonl"

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Hold a run of these settings from now on, and that this commit measures it.

        Raises:
            ValueError: for a folder of other settings.
        """
        from draftwood_bench.run.describe import commit

        self.folder.mkdir(parents=True, exist_ok=True)
        wanted, commits = json.loads(json.dumps(dict(settings))), list[str | None]()
        if self._settings_file.exists():
            if self.settings() != wanted:
                raise ValueError(f"{self.folder} holds a run of other settings; {self.cure}")
            commits = self.commits()
        commits = list(dict.fromkeys([*commits, commit()]))
        told = json.dumps({**wanted, COMMITS: commits}, indent=1, sort_keys=True)
        write_file(self._settings_file, told + "\n")

    @property
    def _settings_file(self) -> Path:
        return self.folder / f"{self.protocol}.json"

    def settings(self) -> dict[str, Any]:
        """Settings of the run.

        Raises:
            ValueError: where they are missing or broken.
        """
        return {name: each for name, each in self._told().items() if name != COMMITS}

    def commits(self) -> list[str | None]:
        """Commits that measured the run, in order; files that differed add ``-dirty``.

        None stands for one that is not known: outside of a checkout, or of old runs.

        Raises:
            ValueError: where settings are missing or broken.
        """
        return list(self._told().get(COMMITS, [None]))

    def _told(self) -> dict[str, Any]:
        file = self._settings_file
        try:
            return dict(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(f"{file} does not hold the settings of a run ({error})") from None

    def append(self, record: Record) -> None:
        """Append a record, which counts once its line is whole."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")  # type: ignore[call-overload]

    def read(self) -> list[Record]:
        """Read the records; a last line that was not written whole does not count.

        Raises:
            ValueError: for another line that is no record.
        """
        if not self.file.exists():
            return []
        *lines, last = self.file.read_text(encoding="utf-8").split("\n")
        if last:  # the next record begins behind a whole line
            write_file(self.file, "".join(f"{line}\n" for line in lines))
        try:
            return [self.kind(**json.loads(line)) for line in lines]
        except (ValueError, TypeError) as error:
            told = f"{self.file} has a line that is no record ({error})"
            raise ValueError(f"{told}; {self.cure}") from None
