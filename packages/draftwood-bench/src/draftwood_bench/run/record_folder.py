"""Folders of records of other packages' protocols: a run that was stopped goes on there."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from draftwood.loading.weights import WeightsFolder
from draftwood_bench.records.files import (
    LOCK,
    append_lines,
    disk_errors,
    held,
    read_lines,
    write_whole,
)
from draftwood_bench.records.typed_fields import made_of

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from draftwood.text.language_model import LanguageModel

Record = TypeVar("Record")
"""A dataclass of texts and numbers."""
COMMITS, PROMPTS, MODELS = "commits", "digests of prompts", "digests of weights"
"""Names of what lies beside settings: the commits, and digests of prompts and models by name."""

_WRITTEN: Any = {"indent": 1, "sort_keys": True}
_HELD = dict[Path, "BaseFileLock"]()
"""Folders that this process writes, until it ends."""


class RunSettings(dict[str, Any]):
    """Settings of a run.

    Args:
        file: that they come from.

    Raises:
        ValueError: for a setting that is not there, naming the file.
    """

    def __init__(self, file: Path, told: Mapping[str, Any]) -> None:
        super().__init__(told)
        self.file = file

    def __missing__(self, name: str) -> Any:
        raise ValueError(f"{self.file} does not say {name!r}; measure into another folder")


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

    def begin(
        self,
        settings: Mapping[str, Any],
        prompts: Mapping[str, Any] | None = None,
        models: Mapping[str, Path | None] | None = None,
    ) -> None:
        """Hold a run of these settings from now on, and that this commit measures it.

        The folder is this process's until it ends.

        Args:
            prompts: by name; others may come later.
            models: folders of those that take part, by name; None for one of no folder.

        Raises:
            OSError: where another process writes the folder, or the disk refuses.
            ValueError: for a folder of other settings, or of other prompts or weights of these
                names.
        """
        from draftwood_bench.run.describe import commit

        place = self.folder.resolve()
        if place not in _HELD or not (place / LOCK).exists():  # it went with the folder
            _HELD[place] = held(self.folder)
        wanted, told = json.loads(json.dumps(dict(settings))), dict[str, Any]()
        if self._settings_file.exists():
            if other := _difference(self.settings(), wanted):
                raise ValueError(
                    f"{self.folder} holds a run of other settings; {self.cure} ({other})"
                )
            told = self._told()
        elif self.file.exists() and self.file.stat().st_size:
            raise ValueError(
                f"{self.folder} holds records but no {self._settings_file.name}; {self.cure}"
            )
        asked = {
            n: sha256(repr(each).encode()).hexdigest()[:16] for n, each in (prompts or {}).items()
        }
        beside = {
            COMMITS: list(dict.fromkeys([*told.get(COMMITS, []), commit()])),
            PROMPTS: self._same("prompt", told.get(PROMPTS, {}), asked),
            MODELS: self._same("model", told.get(MODELS, {}), _weights(models or {})),
        }
        write_whole(
            self._settings_file,
            json.dumps(wanted | {n: each for n, each in beside.items() if each}, **_WRITTEN) + "\n",
        )
        self._cut()

    def _same(self, what: str, told: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
        """All digests by name; raises ValueError where a name has another one by now."""
        for name, digest in now.items():
            if told.get(name, digest) != digest:
                raise ValueError(f"{self.folder} holds a run on another {what} {name}; {self.cure}")
        return {**now, **told}

    def _cut(self) -> None:
        """Take a last line away that was not written whole."""
        if self.file.exists():
            content = self.file.read_bytes()
            with disk_errors(self.file), self.file.open("ab") as file:
                file.truncate(content.rfind(b"\n") + 1)

    @property
    def _settings_file(self) -> Path:
        return self.folder / f"{self.protocol}.json"

    def settings(self) -> RunSettings:
        """Settings of the run.

        Raises:
            ValueError: where they are missing or broken.
        """
        told = {n: each for n, each in self._told().items() if n not in (COMMITS, PROMPTS, MODELS)}
        return RunSettings(self._settings_file, told)

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
        """Append a record, which counts once its line is whole.

        Raises:
            OSError: where the disk refuses; nothing of the record is there then.
        """
        append_lines(self.file, json.dumps(asdict(record)).encode() + b"\n")  # type: ignore[call-overload]

    def read(self) -> list[Record]:
        """Read the records; a last line that was not written whole does not count.

        Raises:
            ValueError: for another line that is no record, naming file and line.
        """
        content = self.file.read_bytes() if self.file.exists() else b""
        make = partial(made_of, self.kind)
        return [record for record, _ in read_lines(self.file, content, make)]


def folders_of(*models: "LanguageModel") -> dict[str, Path | None]:
    """Folders of models' weights by name, as ``begin`` takes them."""
    return {each.name: each.calibration.folder for each in models}


def _difference(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Say which settings differ, and how; nothing where none does."""
    every = [*there, *(each for each in wanted if each not in there)]
    pairs = [(each, there.get(each), wanted.get(each)) for each in every]
    return ", ".join(
        f"{name}: {json.dumps(before)} there, {json.dumps(now)} here"
        for name, before, now in pairs
        if before != now
    )


def _weights(models: Mapping[str, Path | None]) -> dict[str, str]:
    """Digests of models' weights by name, as far as they came from folders."""
    found = {name: folder and WeightsFolder(folder).digest for name, folder in models.items()}
    return {name: digest[:16] for name, digest in found.items() if digest}
