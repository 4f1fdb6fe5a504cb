"""Parts of pages, from records written down by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.common.json_lines import append
from benchmarks.pages import experiments, measurements, speed, summary, trees
from benchmarks.pages.experiments import Choice, has
from benchmarks.pages.runs import MISSING
from benchmarks.training import frames
from draftwood_bench.records.files import Record
from draftwood_bench.report.reading import MeasuredRun
from draftwood_bench.run.blank import blank
from making import record, run_info

PLAIN = [record("plain", prompt, runs=10) for prompt in "123"]
AUTO = [record("auto", prompt, runs=runs) for prompt, runs in zip("123", (5, 4, 2), strict=True)]
PEER = [
    replace(record("peer:quick", prompt, runs=2, at="plain"), seconds_end_to_end=3.0)
    for prompt in "123"
]


def run(records: list[Record], **more) -> MeasuredRun:
    return MeasuredRun(Path("run"), run_info(**more), records, {})


def rows(text: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]


def test_methods_stand_beside_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [replace(each, temperature=1.0) for each in [*PLAIN, *AUTO]]
    found = run([*PLAIN, *AUTO, *PEER, *drawn], drafter="a head")
    monkeypatch.setattr(speed, "all_measured", lambda *names: [found])
    plain, own, peer, *others = rows(speed.methods("any"))
    assert plain[:6] == ["plain", "0", "3", "7", "1", "1"]
    assert own[:3] == ["`auto` + a head", "0", "3"]
    assert (own[4][:4], own[5][:4], own[7]) == ("1.67", "2.50", "3/3")
    assert peer[0] == "quick, plain"
    assert [row[1] for row in others] == ["1", "1"]
    monkeypatch.setattr(speed, "all_measured", lambda *names: [])
    assert speed.methods("any") == MISSING


def test_a_row_in_front_needs_plain_decoding_and_takes_the_best_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"peers": run([*AUTO]), "head": run([*PLAIN, *AUTO, *PEER])}
    monkeypatch.setattr(speed, "measured", lambda name, results: known.get(name))
    (row,) = rows(speed.front())
    assert row[:5] == ["tiny, float32", "greedy (3)", "7", "13", "4, quick plain"]
    assert (row[5][:4], row[6]) == ("1.67", "3.46")


def test_costs_are_told_beside_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {("int8", 1): 4.0, ("int8", 8): 6.0, ("bfloat16", 8): 9.0}
    records = [
        replace(
            blank(path, f"{nodes} nodes", "tiny"), nodes=nodes, stats={"milliseconds": milliseconds}
        )
        for (path, nodes), milliseconds in times.items()
    ]
    monkeypatch.setattr(measurements, "measured", lambda name: run(records, protocol="cost"))
    assert rows(measurements.cost("any")) == [["tiny", "int8", "4.0", "1.50"]]


def test_native_steps_stand_by_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"default": 9.0, "native, 100 tokens": 0.5, "native, 300 tokens": 1.25}
    records = [
        replace(blank("rsd-s", at, "tiny"), temperature=1.0, stats={"milliseconds": milliseconds})
        for at, milliseconds in places.items()
    ]
    monkeypatch.setattr(measurements, "measured", lambda name: run(records, protocol="overhead"))
    assert rows(measurements.overhead("any")) == [["rsd-s", "1", "0.50", "1.25"]]
    monkeypatch.setattr(measurements, "measured", lambda name: None)
    assert measurements.overhead("any") == MISSING


def test_arms_stand_by_amount_of_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(name: str, beside: str) -> dict[str, str]:
        cells = {f"8 nodes, T = {t}": f"1.{t} [1.0, 2.0]" for t in (0, 1)}
        return {"drafter": name, **cells, f"beside {frames.BASE}": beside}

    least = 1000, [row("a", "0.9"), row("b", "")]
    found = [least, (2000, [row("b", "1.1"), row("c", "1.2")])]
    monkeypatch.setattr(frames, "tables", lambda: found)
    assert rows(experiments._of_frames().markdown()) == [  # a has the least data alone
        ["b", "1.0/1.1", "", "1.0/1.1", "1.1"],
        ["c", "", "", "1.0/1.1", "1.2"],  # nothing where an arm was not trained
    ]
    found[1:] = []
    told = rows(experiments._of_frames().markdown())
    assert told == [["a", "1.0/1.1", "0.9"], ["b", "1.0/1.1"]]


def test_claims_stand_by_pair_and_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        record(method, prompt, 21, runs, at=at, cell=f"{method} {at}")
        for at in ("length 3", "budget 6")
        for method, runs in (("rsd-c", 10), ("rsd-s", 8))
        for prompt in "123"
    ]
    found = run(records, draft_ratio=0.25)
    known = ("rsd", "rsd-lm", "grid-eagle", "timed-eagle")
    monkeypatch.setattr(trees, "measured", lambda name: found if name in known else None)
    assert rows(trees.claims()) == [
        ["rsd-s >= rsd-c", "TinyLlama, stories", "1.250 (1/1, 1:0)"],
        ["rsd-s >= rsd-c", "SmolLM2, LM", "1.250 (1/1, 1:0)"],
        ["rsd-s >= rsd-c", "SmolLM2", "1.250 (1/1, 1:0)"],
    ]
    assert trees.trees_over_chains() == trees.scores("grid-eagle", "0") == MISSING
    chains = [replace(each, method="speculative", draft_steps=4) for each in records[:3]]
    found.records.extend([replace(each, at="budget 6") for each in chains])  # type: ignore[attr-defined]
    assert rows(trees.trees_over_chains()) == [["SmolLM2", "0", "1.25 [1.25, 1.25]"]]
    (bound,) = rows(trees.memory_bound("0"))
    assert bound[:2] == ["SmolLM2", "1.00 [1.00, 1.00] (6)"]  # 2.0 over a pass and four levels
    assert trees.memory_bound("1") == MISSING
    assert trees.asked("grid-eagle") == "n = 3 prompts (all 3)"
    assert trees.asked("grid-coder") == MISSING


def test_heads_stand_beside_plain_decoding_of_the_same_texts(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    for commit, factor in (("a1b2c3d4e", 1.0), ("a1b2c3d4e-dirty", 9.0), (None, 9.0)):
        for arm, seconds in (("plain", 2.0), ("shipped", 1.0 * factor), ("plain again", 2.0)):
            about = {"model": "m", "prompts": "p", "temperature": 0.0, "arm": arm, "round": 0}
            about |= {"category": "coding", "prompt": "1", "seconds": seconds, "commit": commit}
            append(path, {**about, "tokens": 60, "passes": 30, "nodes": 90})
    (row,) = rows(measurements.with_heads(path))
    assert row[:2] == ["m", "p"]
    assert [cell.split()[0] for cell in row[2:]] == ["2.000"]  # of the clean commit alone
    assert measurements.with_heads(tmp_path / "none.jsonl") == MISSING


def test_starts_are_those_of_clean_commits_newest_run(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    starts = [("a1b2c3d4e", 9.0), ("b1b2c3d4e", 0.5), ("b1b2c3d4e-dirty", 7.0), (None, 7.0)]
    for commit, seconds in starts:
        for number in range(3):
            about = {"model": "m", "round": number, "threads": 2, "commit": commit}
            for system, factor in (("draftwood", 1), ("llama.cpp", 2)):
                took = seconds * factor + number / 100
                append(path, {**about, "system": system, "seconds": took, "megabytes": 100})
    assert rows(measurements.starts(path)) == [["m", "0.51", "1.01", "0.50", "100", "100"]]
    assert measurements.starts(tmp_path / "none.jsonl") == MISSING


def test_trees_are_told_in_seconds_over_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    beams = {"shape": "StochasticBeam(width=3, depth=2, budget=None)", "at": "length 2"}
    drawn = [record("rsd-s", prompt, runs=5, cell="rsd-s", **beams) for prompt in "123"]
    slower = {**beams, "shape": "StochasticBeam(width=9, depth=2, budget=None)"}
    drawn += [record("rsd-s", prompt, runs=8, cell="wide", **slower) for prompt in "123"]
    found = run([*PLAIN, *drawn])
    monkeypatch.setattr(trees, "measured", lambda name: found if name == "timed-eagle" else None)
    (row,) = rows(trees.in_seconds())
    # the faster shape
    assert row == ["SmolLM2", "0", "2.00 [2.00, 2.00] (length 2)"]
    monkeypatch.setattr(trees, "measured", lambda name: None)
    assert trees.in_seconds() == MISSING


def test_scores_stand_beside_those_of_plain_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [
        record(method, str(prompt), quality={"name": "solved", "value": value})
        for method, values in (("plain", (1.0, 0.0, 1.0, 0.0, 1.0)), ("rsd-s", (1.0,) * 5))
        for prompt, value in enumerate(values)
    ]
    monkeypatch.setattr(trees, "measured", lambda name: run(records))
    plain, drawn = rows(trees.scores("grid-eagle", "0"))
    assert (plain[0], plain[1][:4], drawn[1][:4]) == ("plain", "0.60", "1.00")
    assert (drawn[0], drawn[2][:5]) == ("rsd-s", "+0.40")
    assert trees.scores("grid-eagle", "1") == MISSING


def test_ways_to_read_frames_stand_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = {"paper": [4, 8], "prefix": [8, 16], "raw": [8, 16]}
    records = [
        {"name": f"ctc, {search}", "nodes": 8, "data": 1000, "places": [4, 8], "tokens": found}
        for search, found in tokens.items()
    ]
    monkeypatch.setattr(frames, "read", lambda path: records)
    ((amount, found),) = frames.judged_pairs()
    assert amount == 1000
    half, same, twice = "0.50 [0.50, 0.50]", "1.00 [1.00, 1.00]", "2.00 [2.00, 2.00]"
    assert found == [
        {"frames": "ctc, paper", "beside": "prefix", "8 nodes": half},
        {"frames": "ctc, raw", "beside": "paper", "8 nodes": twice},
    ]
    ((_, held),) = frames.judged()
    assert held[0] == {"frames": "ctc, paper", "8 nodes": same}


def test_a_choice_keeps_rows_and_columns() -> None:
    found = [{"a": "one x", "b": "1", "c": "2"}, {"a": "two", "b": "3", "c": "4"}]
    table = Choice("", ("c", "a", "absent"), has("a", "one")).of(found)
    assert table.rows == (("2", "one x", ""),)


def test_a_summary_has_ten_lines_at_most(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert len(summary.lines().splitlines()) <= summary.LINES
    monkeypatch.setattr(summary, "identity", lambda *results: [])
    for part in (summary.trees, summary.servers):
        name = "summary_line" if part is summary.trees else "told"
        monkeypatch.setattr(part, name, list)
    assert summary.lines(tmp_path) == ""


def test_a_run_on_a_gpu_is_told_with_its_peer() -> None:
    (told,) = summary.gpu()
    assert "H100" in told
    assert "transformers prompt lookup" in told  # the faster one of its two modes
