"""Records of texts: a run that was stopped goes on in its folder."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SETTINGS, RECORDS = "parallel.json", "parallel.jsonl"


@dataclass(frozen=True)
class TextRecord:
    """A text that a method wrote.

    Attributes:
        method: as the user typed it.
        prompt: its name: of a task and an exercise, or of a line.
        tokens, passes: of the text.
        score: 1 for a right answer and 0 for another one, or nats per token under a judge; None for
            a text without tokens that a judge reads.
        text: itself.
    """

    method: str
    prompt: str
    tokens: int
    passes: int
    score: float | None
    text: str


@dataclass(frozen=True)
class Records:
    """Records of a run, a line each, beside its settings.

    Attributes:
        folder: made where it is missing; None keeps them in memory alone.
    """

    folder: Path | None

    def begin(self, settings: Mapping[str, Any]) -> list[TextRecord]:
        """Hold a run of these settings from now on; gives the records that are there.

        A last line that was not written whole does not count.

        Raises:
            ValueError: for a folder of other settings, and a line that is no record.
        """
        if self.folder is None:
            return []
        self.folder.mkdir(parents=True, exist_ok=True)
        told, file = json.dumps(dict(settings), indent=1, sort_keys=True), self.folder / SETTINGS
        if file.exists() and file.read_text(encoding="utf-8") != told:
            raise ValueError(f"{self.folder} holds a run of other settings; give another --output")
        file.write_text(told, encoding="utf-8")
        return self._read(self.folder / RECORDS)

    def _read(self, file: Path) -> list[TextRecord]:
        if not file.exists():
            return []
        *lines, last = file.read_text(encoding="utf-8").split("\n")
        if last:  # the next record begins behind a whole line
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        try:
            return [TextRecord(**json.loads(line)) for line in lines]
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{file} has a line that is no record ({error}); give another --output"
            ) from None

    def append(self, record: TextRecord) -> None:
        """Append a record, which counts once its line is whole."""
        if self.folder is not None:
            with (self.folder / RECORDS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(record)) + "\n")
