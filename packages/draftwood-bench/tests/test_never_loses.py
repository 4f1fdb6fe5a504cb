"""The table of `auto` over plain decoding with bad heads, from made-up records."""

from pathlib import Path

import pytest

from benchmarks import never_loses
from benchmarks.common.json_lines import append, read

SECONDS = {
    "plain": [1.0, 1.0, 1.0],
    "random": [1.0, 2.0, 0.5],
    "plain again": [1.0, 1.0, 1.0],
}
"""Seconds of three rounds, by arm; a text of another category takes as long."""
RUN = {"processor": "this one", "commit": "now"}


@pytest.fixture
def records(tmp_path: Path) -> Path:
    path = tmp_path / "records.jsonl"
    for arm, rounds in SECONDS.items():
        for number, seconds in enumerate(rounds):
            for category in ("writing", "coding"):
                about = {
                    "model": "m",
                    "prompts": "p",
                    "temperature": 1.0,
                    "arm": arm,
                    "round": number,
                }
                about |= {"category": category, "prompt": f"{category}/1", "seconds": seconds}
                append(path, {**about, **RUN, "tokens": 60, "passes": 40, "nodes": 80})
    return path


def test_ratios_are_of_all_rounds_and_texts_of_the_middle_one(records: Path) -> None:
    found = {(row["head"], row["category"]): row for row in never_loses.rows(read(records))}
    assert set(found) == {
        (arm, category)
        for arm in ("random", "plain again")
        for category in (never_loses.ALL, "writing", "coding")
    }
    for category in (never_loses.ALL, "writing"):
        row = found["random", category]
        assert row["ratio"].startswith("0.857")  # 3 over 3.5 seconds
        assert row["least text"] == "1.000"
        assert (row["tokens a pass"], row["nodes a pass"]) == ("1.500", "2.00")
        assert found["plain again", category]["ratio"].startswith("1.000")


def test_sets_of_prompts_stand_apart(records: Path) -> None:
    """Seconds of another set change nothing of the first one's."""
    before = never_loses.rows(read(records))
    for arm in ("plain", "random"):
        about = {"model": "m", "prompts": "q", "temperature": 1.0, "arm": arm, "round": 0}
        about |= {"category": "writing", "prompt": "writing/1", "seconds": 7.0}
        append(records, {**about, **RUN, "tokens": 60, "passes": 40, "nodes": 80})
    after = never_loses.rows(read(records))
    assert [row for row in after if row["prompts"] == "p"] == before
    assert {row["prompts"] for row in after} == {"p", "q"}


def test_without_records_the_table_says_what_to_do(tmp_path: Path) -> None:
    assert never_loses.rows(read(tmp_path / "none.jsonl")) == []


def test_records_of_another_commit_or_machine_do_not_count(records: Path) -> None:
    before = never_loses.rows(read(records))
    own = read(records)
    for other in ({"commit": "before"}, {"processor": "another"}):
        old = [{**each, **other, "seconds": 9.0} for each in own]
        assert never_loses.rows([*old, *own]) == before
        assert never_loses.rows([*own, *old]) != before
