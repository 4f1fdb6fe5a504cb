"""The table of ways to learn, from made-up ranks."""

import json
from itertools import combinations
from pathlib import Path

import pytest

from benchmarks.training import learning

PATHS = ["0000", "0100", "0140", "1000", "4000", "0004", "1400", "0001"]


def test_the_best_tree_holds_most_of_the_paths() -> None:
    nodes = sorted({path[:n] for path in PATHS for n in range(1, learning.alive(path) + 1)})
    for count in (1, 2, 4):
        tree = learning.best_tree(PATHS, count)
        found = sum(learning.held(path, tree) for path in PATHS)
        best = max(
            sum(learning.held(path, set(each)) for path in PATHS)
            for each in combinations(nodes, count)
        )
        assert len(tree) == count
        assert found == best


def test_levels_end_at_the_first_miss() -> None:
    assert [learning.alive(path) for path in PATHS] == [4, 4, 2, 4, 0, 3, 1, 4]
    assert learning.held("0100", {"0", "01"}) == 2
    assert learning.held("4000", {"0"}) == 0


def test_arms_stand_beside_the_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = tmp_path / "records.jsonl"
    facts = {"minutes": 5.0, "read": 60_000, "seconds": 50.0, "step": 40, "best_step": 30}
    lines = [
        {"name": name, **facts, "text": text, "ranks": ranks, "overlap": 0.5}
        for name, ranks in ((learning.BASE, ["4000", "0400"]), ("better", ["0000", "0400"]))
        for text in range(4)
    ]
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(learning, "RECORDS", records)
    ((minutes, (base, better)),) = learning.rows()
    assert minutes == 5.0
    assert base["1 nodes"].startswith("1.50")
    assert better["8 nodes"].startswith("3.50")
    assert better["beside base, 8 nodes"].startswith("2.33")
    assert base["beside base, 8 nodes"] == ""
    assert (base["tokens/s"], base["best at"]) == ("1,200", "75%")


def test_arms_differ_in_one_thing() -> None:
    base = learning.Arm(learning.BASE).recipe
    names = [arm.name for arm in learning.ARMS]
    assert len(set(names)) == len(names)
    for arm in learning.ARMS[1:]:
        assert arm.settings or arm.recipe != base
