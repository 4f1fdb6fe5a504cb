"""Records as lines of JSON, and the folder they lie in."""

import json
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from draftwood_bench.records.files import is_clean

RESULTS = Path(__file__).resolve().parents[1] / "results"


def read(path: Path) -> list[dict[str, Any]]:
    """Records of a file, without a last line that was not written whole; none of no file."""
    if not path.is_file():
        return []
    *lines, _ = path.read_text().split("\n")
    return [json.loads(line) for line in lines]


def read_clean(path: Path) -> list[dict[str, Any]]:
    """Records of a file that clean commits measured."""
    return [each for each in read(path) if is_clean(each.get("commit"))]


def grouped(records: Iterable[Mapping[str, Any]], *names: str) -> dict[Any, list[dict[str, Any]]]:
    """Records by a field, or by a tuple of several, in their order."""
    found: dict[Any, list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault(itemgetter(*names)(record), []).append(dict(record))
    return found


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Write one more record behind the last whole line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(max(0, file.tell() - 1))
        if file.read(1) not in (b"", b"\n"):
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(record).encode() + b"\n")


def newest(records: Iterable[Mapping[str, Any]], *names: str) -> list[dict[str, Any]]:
    """Records of the newest commit and its processor, in each group that fields name.

    Seconds of other commits or machines are not of one run.
    """

    def run(record: Mapping[str, Any]) -> tuple[Any, Any]:
        return record.get("processor"), record.get("commit")

    groups = grouped(records, *names).values()
    return [each for own in groups for each in own if run(each) == run(own[-1])]
