"""The scripts that compare checkouts: processes answer in turns, tables tell what they took."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import busy, versions
from benchmarks.common import processes
from benchmarks.self_speculation import overlap
from checkout import BENCH, PYTHONPATH, ROOT


def script(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    inherited = {**os.environ, "PYTHONPATH": PYTHONPATH, **environment}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=inherited, cwd=BENCH
    )


def test_a_process_answers_every_line(target: str) -> None:
    asked = [("plain", 0.0), ("lookup", 0.0), ("plain", 1.0)]
    said: list[str] = []
    requests = [json.dumps([method, heat, "abcabc", 6]) for method, heat in asked]
    processes.serve(target, requests, said.append)
    ready, *answers = map(json.loads, said)
    assert ready == {}
    assert [answer["tokens"] for answer in answers] == [6, 6, 6]
    assert answers[0]["text"] == answers[1]["text"] != answers[2]["text"]
    assert all(answer["seconds"] > 0 for answer in answers)


def test_turns_change_and_other_folders_are_refused(tmp_path: Path) -> None:
    assert processes.in_turns({"old": 1, "new": 2}, 0) == ["old", "new"]
    assert processes.in_turns({"old": 1, "new": 2}, 1) == ["new", "old"]
    assert processes.checkout(str(ROOT)) == ROOT
    with pytest.raises(SystemExit, match="is no checkout of draftwood; --old names one"):
        processes.checkout(str(tmp_path))


@pytest.mark.proof
def test_two_versions_in_turns(target: str, tmp_path: Path) -> None:
    (tmp_path / "spec_bench").mkdir()
    lines = [{"question_id": n, "category": f"{n}", "turns": ["hello"]} for n in range(2)]
    questions = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "spec_bench" / "question.jsonl").write_text(questions)
    asked = ("--model", target, "--cases", "plain 0,lookup 1", "--rounds", "1", "--tokens", "4")
    more = ("--overhead-rounds", "0", "--json")
    done = script("versions", "--old", str(ROOT), *asked, *more, DRAFTWOOD_DATA=str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["case"] for row in rows] == ["plain 0 tok/s", "lookup 1 tok/s"]
    assert [row["texts equal"] for row in rows] == ["yes", "yes"]
    assert all(row["new over old"] > 0 for row in rows)


@pytest.mark.proof
def test_overhead_of_two_versions_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = versions.overhead(ROOT, 1)  # by the command of that checkout
    assert measured.keys() >= {"recycling 0"}
    assert all(milliseconds > 0 for milliseconds in measured.values())
    asked: list[str] = []

    def told(tree: str, steps: int) -> dict[str, float]:
        asked.append(tree)
        return {"recycling 0": {"old": 2.0, "new": 1.0}[tree] * steps}

    monkeypatch.setattr(versions, "overhead", told)
    given = SimpleNamespace(overhead_rounds=2, steps=3)
    (row,) = versions._overheads({"old": "old", "new": "new"}, given)
    assert asked == ["old", "new", "new", "old"]  # in turns
    assert (row["case"], row["old"], row["new"]) == ("recycling 0 ms", 6.0, 3.0)
    assert (row["new over old"], row["texts equal"]) == (0.5, "")


@pytest.mark.proof
def test_speed_beside_busy_loops(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "busy.json"
    asked = ("--model", target, "--cases", "nice loops", "--rounds", "1", "--tokens", "4")
    done = script("busy", "run", *asked, "--output", str(output))
    assert done.returncode == 0, done.stderr
    assert "all texts equal: yes" in done.stdout
    record = json.loads(output.read_text())
    assert [(row["case"], row["method"]) for row in record["rows"]] == [
        *(("idle", "plain"), ("idle", "auto")),
        *(("nice loops", "plain"), ("nice loops", "auto")),
    ]
    busy.report(SimpleNamespace(file=str(output)))
    assert capsys.readouterr().out == done.stdout


def test_overlap_tells_what_was_hidden_and_refuses_other_texts() -> None:
    def record(arm: str, speed: float, **more: object) -> dict[str, object]:
        stats = {"tokens": 9, "target_runs": 4, "tokens_per_second": speed, **more}
        facts = {"pair": "tiny", "widths": "1-1", "temperature": 0.0, "prompt": "a", "round": 0}
        return {"arm": arm, "stats": stats, **facts}

    drafting = {"seconds": 2.0, "hidden": 1.5, "ahead": 4, "kept": 1}
    table = overlap.rows([record("turns", 10.0), record("1+1", 12.0, drafting=drafting)])
    turns, both = table
    assert (turns["way"], turns["drafting hidden"], turns["speed over turns"]) == ("turns", "", "")
    assert both["speed over turns"] == "1.20"  # of one prompt, so without an interval
    assert both["drafting hidden"] == "0.75"
    assert both["outcomes foreseen"] == "0.25"
    prompt = SimpleNamespace(id="a")
    overlap.require_same({"plain": [1], "turns": [2], "1+1": [2]}, prompt, 1.0)
    with pytest.raises(RuntimeError, match="texts of prompt a differ"):
        overlap.require_same({"turns": [2], "1+1": [3]}, prompt, 1.0)
    with pytest.raises(RuntimeError, match="texts of prompt a differ"):
        overlap.require_same({"plain": [1], "1+1": [2]}, prompt, 0.0)
