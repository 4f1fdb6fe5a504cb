"""The table of `auto` over plain decoding with bad heads, from made-up records."""

from pathlib import Path

import pytest

from benchmarks import never_loses
from benchmarks.common.json_lines import append

SECONDS = {
    "plain": [1.0, 1.0, 1.0],
    "random": [1.0, 2.0, 0.5],
    "plain again": [1.0, 1.0, 1.0],
}
"""Seconds of three rounds, by arm; a text of another category takes as long."""


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "records.jsonl"
    for arm, rounds in SECONDS.items():
        for number, seconds in enumerate(rounds):
            for category in ("writing", "coding"):
                about = {"model": "m", "temperature": 1.0, "arm": arm, "round": number}
                about |= {"category": category, "prompt": f"{category}/1", "seconds": seconds}
                append(path, {**about, "tokens": 60, "passes": 40, "nodes": 80})
    return path


def test_ratios_are_of_all_rounds_and_texts_of_the_middle_one(records: Path) -> None:
    found = {(row["head"], row["category"]): row for row in never_loses.rows(records)}
    assert set(found) == {
        (arm, category)
        for arm in ("random", "plain again")
        for category in (never_loses.ALL, "writing", "coding")
    }
    for category in (never_loses.ALL, "writing"):
        row = found["random", category]
        assert row["ratio"].startswith("0.857 [")  # 3 over 3.5 seconds
        assert row["least text"] == "1.000"
        assert (row["tokens a pass"], row["nodes a pass"]) == ("1.500", "2.00")
        assert found["plain again", category]["ratio"].startswith("1.000 [")


def test_without_records_the_table_says_what_to_do(tmp_path: Path) -> None:
    assert never_loses.rows(tmp_path / "none.jsonl") == []
