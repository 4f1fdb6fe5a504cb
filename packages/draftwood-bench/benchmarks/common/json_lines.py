"""Records as lines of JSON, and the folder they lie in."""

import json
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"


def read(path: Path) -> list[dict[str, Any]]:
    """Records of a file; none where there is no file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def grouped(records: Iterable[Mapping[str, Any]], *names: str) -> dict[Any, list[dict[str, Any]]]:
    """Records by a field, or by a tuple of several, in their order."""
    found: dict[Any, list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault(itemgetter(*names)(record), []).append(dict(record))
    return found


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Write one more record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def newest(records: Iterable[Mapping[str, Any]], *names: str) -> list[dict[str, Any]]:
    """Records of the newest commit and its processor, in each group that fields name.

    Seconds of other commits or machines are not of one run.
    """

    def run(record: Mapping[str, Any]) -> tuple[Any, Any]:
        return record["processor"], record["commit"]

    groups = grouped(records, *names).values()
    return [each for own in groups for each in own if run(each) == run(own[-1])]
