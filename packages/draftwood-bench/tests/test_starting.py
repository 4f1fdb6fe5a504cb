"""First loads: what is packed before each of them, and what they are told to take longer."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import starting
from benchmarks.common.json_lines import append, read
from draftwood.native import library


@pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
def test_a_first_load_packs_and_a_later_one_finds_it(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[int] = []
    real = starting.started

    def watched(python: Path, program: str, environment: Mapping[str, str]) -> starting.Started:
        found = Path(environment["DRAFTWOOD_HOME"]).glob("packed/[!.]*")
        packed.append(len(list(found)))
        return real(python, program, environment)

    monkeypatch.setattr(starting, "started", watched)
    output = tmp_path / "records.jsonl"
    starting.first([target], 1, 1, output)
    assert packed == [0, 1, 0, 1]  # of the round that warms up too
    records = read(output)
    assert [each["load"] for each in records] == ["first", "later"]
    assert all(each["seconds"] > 0 and each["gigabytes"] > 0 for each in records)
    assert [row["model"] for row in starting.first_rows(output)] == [target]


def test_what_a_first_load_takes_longer_is_told_by_gigabyte(tmp_path: Path) -> None:
    output, facts = tmp_path / "records.jsonl", {"model": "m", "processor": "p", "commit": "c"}
    for load, seconds in (("first", 2.0), ("later", 1.0), ("first", 2.2), ("later", 1.0)):
        append(output, {**facts, "load": load, "seconds": seconds, "gigabytes": 0.5})
    (row,) = starting.first_rows(output)
    assert (row["first load"], row["later load"]) == ("2.10 s", "1.00 s")
    assert (row["more by GB"], row["at most"]) == ("2.20 s", "2 s")
