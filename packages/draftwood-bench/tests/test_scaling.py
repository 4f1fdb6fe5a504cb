"""Lines through the scaling runs."""

from pathlib import Path

import pytest

from benchmarks.common.json_lines import append
from benchmarks.training import scaling


def planted(path: Path, tokens: int, accepted: float) -> None:
    """A run of so many tokens that accepts as much after every prompt, at both temperatures."""
    for heat in scaling.TEMPERATURES:
        for prompt in ("a", "b"):
            record = {"name": f"data {tokens}", "temperature": heat, "prompt": prompt}
            record |= {"data": tokens, "tokens": round(100 * (1 + accepted)), "runs": 100}
            append(path, record)


def test_two_points_explain_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "records.jsonl"
    monkeypatch.setattr(scaling, "RECORDS", path)
    small, middle, large, _ = scaling.DATA
    planted(path, small, 0.5)
    planted(path, middle, 0.7)
    assert [row["R squared"] for row in scaling.rows()] == ["-", "-"]
    planted(path, large, 0.6)
    three = scaling.rows()[0]
    assert 0 < float(three["R squared"]) < 0.9  # negative control: points off the line
    assert three["ten times the"] == "data, T = 0"
