"""Runs of scaling laws, lines through them, and what these foretell."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.json_lines import append
from benchmarks.training import scaling


def planted(path: Path, name: str, tokens: int, accepted: float) -> None:
    """A run of so many tokens that accepts as much after every prompt, at both temperatures."""
    for heat in scaling.TEMPERATURES:
        for prompt in ("a", "b"):
            record = {"name": name, "temperature": heat, "prompt": prompt, "weights": 9}
            record |= {"data": tokens, "tokens": round(100 * (1 + accepted)), "runs": 100}
            append(path, record)


def test_two_points_explain_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "records.jsonl"
    monkeypatch.setattr(scaling, "RECORDS", path)
    for tokens, accepted in zip(scaling.DATA[:2], (0.5, 0.7), strict=True):
        planted(path, f"data {tokens}", tokens, accepted)
    assert [row["R squared"] for row in scaling.rows()] == ["-", "-"]
    planted(path, f"data {scaling.DATA[2]}", scaling.DATA[2], 0.6)
    three = scaling.rows()[0]
    assert 0 < float(three["R squared"]) < 0.9  # negative control: points off the line
    assert three["ten times the"] == "data, T = 0"


def test_there_are_at_most_twelve_runs_and_their_hours_are_told() -> None:
    every = [*scaling.arms(), scaling.largest()]
    assert len(every) <= 12
    assert len({arm.name for arm in every}) == len(every)
    assert {arm.question for arm in every} == {"data", "weights", "batch", "target"}
    one, four = (next(a for a in every if a.name == n) for n in ("data 300000", "layers 4"))
    assert scaling.hours([one], 1000.0) == pytest.approx(300 / 3600)
    assert scaling.hours([four], 1000.0) == pytest.approx(2.5 * 100 / 3600)
    took = [scaling.hours([arm], 1000.0) for arm in every]
    assert took == sorted(took)
    assert {
        name for axis in ("data", "weights", "batch", "target") for name in scaling.names_of(axis)
    } == {arm.name for arm in every[:-1]}
    assert {arm.is_of_second for arm in every[-4:-2]} == {False, True}


def test_a_point_on_the_line_is_foretold_and_one_off_it_is_not() -> None:
    sizes = scaling.OF_SECOND
    line = 0.3 * np.log10(sizes) - 1.0
    exact = np.tile(line, (200, 1))
    found = scaling.forecast(exact, sizes, scaling.LARGEST)
    assert found.value == pytest.approx(0.3 * np.log10(scaling.LARGEST) - 1.0)
    assert found.high - found.low < 1e-6
    assert scaling.slope(exact, sizes).value == pytest.approx(0.3)
    assert scaling.explained(exact, sizes) == pytest.approx(1.0)
    bent = exact + np.array([0.05, -0.05, -0.05, 0.05])
    wide = scaling.forecast(bent, sizes, scaling.LARGEST)
    assert wide.high - wide.low > 0.2
    assert scaling.explained(bent, sizes) < 0.99


def test_a_forecast_comes_before_its_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, told = tmp_path / "records.jsonl", tmp_path / "foretold.jsonl"
    monkeypatch.setattr(scaling, "RECORDS", records)
    monkeypatch.setattr(scaling, "FORETOLD", told)
    for number, tokens in enumerate(scaling.OF_SECOND):
        planted(records, scaling.of_second(tokens).name, tokens, 1 + number / 10)
    scaling.foretell()
    kept = told.read_text()
    (row, _) = scaling.foretold_rows()
    assert (row["foretold"][:4], row["measured"]) == ("1.38", "")
    (second, _) = scaling.rows()
    assert (second["ten times the"], second["adds"][:4]) == ("data, second target, T = 0", "0.20")
    planted(records, scaling.largest().name, scaling.LARGEST, 1.38)
    scaling.foretell()
    assert told.read_text() == kept  # never foretold again
    assert scaling.foretold_rows()[0]["within"] == "yes"
    told.unlink()
    with pytest.raises(RuntimeError, match="is no forecast"):
        scaling.foretell()
    with pytest.raises(ValueError, match="not all prompts are measured"):
        scaling.accepted([], ["data 100000"], 0.0)


def test_the_foretold_run_asks_for_as_many_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Held:
        def counts(self) -> dict[str, int]:
            return {"tokens": 3_000_000}

    monkeypatch.setattr(scaling.Manifest, "read", lambda path: Held())
    scaling.require_tokens(tmp_path, 3_000_000)
    with pytest.raises(SystemExit, match=r"holds 3,000,000 tokens, .* with more --tokens"):
        scaling.require_tokens(tmp_path, scaling.LARGEST)


def test_openings_are_of_no_measured_story(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "tinystories_sample"
    folder.mkdir()
    stories = [
        f"The {n}th cat sat. " + "It saw a dog and ran away very fast. " * 6 for n in range(60)
    ]
    (folder / "tiny_stories.txt").write_text("\n".join(stories))
    monkeypatch.setenv("DRAFTWOOD_DATA", str(tmp_path))
    found = scaling.openings()
    assert {"It saw a dog and ran", "It saw a"} <= set(found)
    assert len(found) == len(set(found)) == 2 + 20  # of 60 stories 40 are measured
    assert found == scaling.openings()
