"""Records of texts: a run that was stopped goes on in its folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwood_bench.run.record_folder import RecordFolder

PROTOCOL = "parallel"
"""Names the files of its records."""


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

    @property
    def _kept(self) -> RecordFolder[TextRecord] | None:
        if self.folder is None:
            return None
        return RecordFolder(self.folder, PROTOCOL, TextRecord, "give another --output")

    def begin(self, settings: Mapping[str, Any]) -> list[TextRecord]:
        """Hold a run of these settings from now on; gives the records that are there.

        Raises:
            ValueError: for a folder of other settings, and a line that is no record.
        """
        if (kept := self._kept) is None:
            return []
        kept.begin(settings)
        return kept.read()

    def append(self, record: TextRecord) -> None:
        """Append a record, which counts once its line is whole."""
        if (kept := self._kept) is not None:
            kept.append(record)
