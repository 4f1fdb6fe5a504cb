"""Old records of the RSD benchmark become records of today, and give the figures they gave."""

from pathlib import Path

import pytest

from draftwood.bench.convert import convert_rsd
from draftwood.bench.records import read_records, read_run
from draftwood.bench.statistics import block_efficiency
from draftwood.bench.tables import best_shape, orderings, tables

KEY = "rsd-c | length 2 | Widths(widths=(3, 1), draw='distinct', budget=None)"


def line(key: str = KEY, temperature: float = 1.0, runs: tuple[int, ...] = (30, 40), **more: object) -> dict:
    method, at, shape = key.split(" | ")
    fields = {"key": key, "method": method, "at": at, "shape": shape, "temperature": temperature, "prompts": len(runs)}
    fields |= {"tokens": 64, "nodes": 6, "whole_trees": False, "per_prompt": [[63, each] for each in runs]}
    fields |= {"accepted_by_depth": [2**40], "seconds": 82.0, "model": "no-target", "draft_model": "no-draft"}
    return {**fields, "draftwood": "0.1.0", "commit": "abc", "torch": "2", "processor": "x", "threads": 1} | more


def test_measurements_are_kept(tmp_path: Path) -> None:
    beams = KEY.replace("rsd-c", "rsd-s").replace(
        "Widths(widths=(3, 1), draw='distinct', budget=None)", "StochasticBeam(width=3, depth=2, budget=None)"
    )
    assert convert_rsd([line(), line(beams, runs=(20, 30), commit="def")], tmp_path) == 4
    records, run = read_records(tmp_path), read_run(tmp_path)
    first = records[0]
    assert (first.cell, first.at, first.draft_steps, first.nodes, first.seed) == (KEY, "length 2", 2, 6, 0)
    assert (first.stats["tokens"], first.stats["target_runs"]) == (64, 30)
    assert "accepted_by_depth" not in first.stats  # it was wrong
    found = best_shape(records, "rsd-s", "length 2")
    assert found is not None
    estimate = block_efficiency(found)
    assert estimate is not None
    assert estimate.value == pytest.approx(126 / 50)
    assert (run.commit, run.resumed) == ("abc", [{"commit": "def"}])
    assert run.options["thrifty"] is True
    assert run.options["settings"]["prompts"] == "stories"
    assert tables(records, run)[0].rows[0][:1] == ("rsd-c",)
    assert orderings(records).rows[0][:4] == ("rsd-s >= rsd-c", "1", "fixed length", "1 of 1")


def test_more_records_join_those_there_are(tmp_path: Path) -> None:
    assert convert_rsd([line()], tmp_path) == 2
    assert convert_rsd([line(), line(temperature=0.3, commit="def")], tmp_path) == 2
    run = read_run(tmp_path)
    assert run.options["settings"]["temperatures"] == [1.0, 0.3]
    assert (run.commit, run.resumed) == ("abc", [{"commit": "def"}])
    assert len(read_records(tmp_path)) == 4


def test_what_the_protocol_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no configuration .rsd-x"):
        convert_rsd([line(KEY.replace("rsd-c", "rsd-x"))], tmp_path)
    with pytest.raises(ValueError, match="one model, these have several"):
        convert_rsd([line(), line(model="other")], tmp_path)
