"""Prompts of the data sets that benchmarks read, where they are present."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Question:
    """One prompt of Spec-Bench: its first turn."""

    number: int
    category: str
    text: str


def folder() -> Path:
    """The folder of data sets: ``$DRAFTWOOD_DATA``, else ``../shared/data`` beside the checkout."""
    path = Path(
        os.environ.get("DRAFTWOOD_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
    )
    if not path.is_dir():
        sys.exit(f"no data sets at {path}; set DRAFTWOOD_DATA to their folder")
    return path


def spec_bench(per_category: int) -> list[Question]:
    """The first questions of every category, in the order of the file (its even question numbers
    only).
    """
    path = folder() / "spec_bench" / "question.jsonl"
    taken: dict[str, list[Question]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        chosen = taken.setdefault(row["category"], [])
        if len(chosen) < per_category:
            chosen.append(Question(row["question_id"], row["category"], row["turns"][0]))
    return [question for questions in taken.values() for question in questions]


def read_records(path: Path) -> list[dict]:
    """Results so far; none where the file is not there."""
    return (
        [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        if path.exists()
        else []
    )


def append_record(path: Path, record: dict) -> None:
    """Add one result as one line."""
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
