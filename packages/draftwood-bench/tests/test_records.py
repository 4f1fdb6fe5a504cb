"""Nothing that was written is ever lost, and nothing is half-written."""

import errno
import gzip
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from draftwood.costs.calibration import Calibration, read, store
from draftwood.costs.curve import Curve
from draftwood.testing import tiny_llama
from draftwood_bench.records import matrices
from draftwood_bench.records.files import (
    LOCK,
    PACKED,
    RECORDS,
    read_clean,
    read_records,
    read_run,
    write_run,
    writing,
)
from draftwood_bench.records.matrices import matrix_sizes
from draftwood_bench.records.notes import notes
from draftwood_bench.run.describe import commit, curve_of, versions
from draftwood_bench.run.workbench import Workbench
from draftwood_torch.models.transformers import TransformersModel
from making import record, run_info


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    wanted = [record(prompt="1"), record(prompt="2", law={"p_value": 0.5}, text="zwölf \n Zeilen")]
    with writing(tmp_path) as writer:
        writer.append(wanted[:1])
        writer.append(wanted[1:])
        assert writer.done == {each.key for each in wanted}
    assert read_records(tmp_path) == wanted
    with writing(tmp_path) as writer:
        assert writer.records == wanted


CLEAN = (  # commits of starts, how many records lie there before, and prompts that are left
    (["a"], [0], "0123"),
    (["a-dirty"], [0], ""),
    ([None], [0], ""),
    (["a", "b-dirty"], [0, 2], "01"),
    (["a-dirty", "b", "c-dirty"], [0, 1, 3], "12"),
    (["a", "b", "c-dirty"], [0, None, 3], "012"),
    (["a", "b-dirty", "c"], [0, None, 3], "3"),  # the second's records are among the first's
    (["a", "b-dirty"], [0, None], ""),
)


@pytest.mark.parametrize(("commits", "before", "left"), CLEAN)
def test_records_count_as_clean_where_their_commit_holds_what_was_measured(
    tmp_path: Path, commits: list[str | None], before: list[int | None], left: str
) -> None:
    with writing(tmp_path) as writer:
        writer.append([record(prompt=prompt) for prompt in "0123"])
    later = [
        {"commit": name} | ({} if count is None else {"records": count})
        for name, count in zip(commits[1:], before[1:], strict=True)
    ]
    write_run(tmp_path, run_info(commit=commits[0], resumed=later))
    run, records = read_clean(tmp_path)
    assert "".join(each.prompt for each in records) == left
    assert not run.dirty


def test_a_record_measured_again_counts_by_its_last_commit(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        writer.append([record(prompt="0"), record(prompt="1"), record(prompt="0")])
        assert writer.lines == 0
    with writing(tmp_path) as writer:
        assert writer.lines == 3
    write_run(tmp_path, run_info(commit="a", resumed=[{"commit": "b-dirty", "records": 2}]))
    assert [each.prompt for each in read_clean(tmp_path)[1]] == ["1"]


def test_a_package_that_brings_methods_is_told_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "my_drafts-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: my-drafts\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[draftwood]\nmine = told_by_source\n")
    (tmp_path / "told_by_source.py").write_text("raise AssertionError\n")  # never imported
    before = versions()
    monkeypatch.syspath_prepend(str(tmp_path))
    first = versions()
    assert re.fullmatch(r"1\.0, told_by_source [0-9a-f]{9}", first["my-drafts"])
    assert {name: first[name] for name in before} == before
    (tmp_path / "told_by_source.py").write_text("1\n")
    assert versions()["my-drafts"] != first["my-drafts"]
    (tmp_path / "told_by_source.py").unlink()
    assert versions()["my-drafts"] == "1.0, told_by_source missing"


def test_versions_and_trees_that_change_within_a_run_are_noted() -> None:
    starts = [{"commit": None}, {"versions": {"torch": "2", "mine": "1"}, "started": "today"}]
    run, shapes = run_info(versions={"torch": "1"}, resumed=starts), ("Fan(4)", "Fan(4)", "Fan(5)")
    records = [record(prompt=str(place), shape=shape) for place, shape in enumerate(shapes)]
    told = notes(records, run)
    assert "torch: 1, then 2 since the start of today, so the records mix both" in told
    assert "mine: none told, then 1 since the start of today, so the records mix both" in told
    assert "auto, default: its tree changed between starts: Fan(4), then Fan(5)" in told
    same = notes(records[:2], run_info(versions={"torch": "1"}, resumed=starts[:1]))
    assert not any("torch" in each or "tree changed" in each for each in same)


def test_records_that_grow_leave_a_commit_clean(tmp_path: Path) -> None:
    """They lie in the checkout; a run that goes on would else be marked by its own records."""
    results = tmp_path / "packages/draftwood-bench/benchmarks/results"
    results.mkdir(parents=True)
    code, records = tmp_path / "code.py", results / "records.jsonl"
    code.write_text("1\n")
    records.write_text("1\n")
    assert commit(tmp_path) is None
    who = ["-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    clean = commit(tmp_path)
    assert clean
    assert not clean.endswith("-dirty")
    records.write_text("1\n2\n")
    assert commit(tmp_path) == commit(results) == clean
    records.unlink()
    assert commit(tmp_path) == clean
    part = tmp_path / "packages/draftwood/src/part.py"  # which a method may find by its folder
    part.parent.mkdir(parents=True)
    part.write_text("1\n")
    assert commit(tmp_path) == commit(results) == f"{clean}-dirty"
    part.unlink()
    assert commit(tmp_path) == clean
    code.write_text("2\n")
    assert commit(tmp_path) == commit(results) == f"{clean}-dirty"
    environment = tmp_path / ".venv"
    environment.mkdir()
    (environment / "installed.py").write_text("1\n")
    assert commit(environment) is None  # its files are not the checkout's


@pytest.mark.parametrize(
    ("commits", "before", "told"),
    [
        (["a", "b-dirty", "c"], [0, 2, 2], []),
        (["a-dirty", "b"], [0, 0], []),
        (["a", "b-dirty", "c"], [0, 2, 3], ["b-dirty"]),
        (["a", "b-dirty"], [0, 2], ["b-dirty"]),
        (["a", "b-dirty", "c"], [0, None, 2], ["b-dirty"]),  # nothing tells what it measured
    ],
)
def test_a_start_that_measured_nothing_makes_no_run_dirty(
    commits: list[str], before: list[int | None], told: list[str]
) -> None:
    starts = [
        {"commit": name} | ({} if count is None else {"records": count})
        for name, count in zip(commits, before, strict=True)
    ]
    assert run_info(commit=commits[0], resumed=starts[1:]).dirty == told


def test_a_line_without_its_end_is_taken_away(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        writer.append([record(prompt="1")])
    whole = (tmp_path / RECORDS).read_bytes()
    (tmp_path / RECORDS).write_bytes(whole + whole[:40])
    assert len(read_records(tmp_path)) == 1
    with writing(tmp_path) as writer:
        writer.append([record(prompt="2")])
    assert [each.prompt for each in read_records(tmp_path)] == ["1", "2"]


def pack(folder: Path) -> None:
    (folder / PACKED).write_bytes(gzip.compress((folder / RECORDS).read_bytes()))
    (folder / RECORDS).unlink()


def test_packed_records_are_read_and_gone_on_with(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        writer.append([record(prompt="1")])
    pack(tmp_path)
    assert [each.prompt for each in read_records(tmp_path)] == ["1"]
    with writing(tmp_path) as writer:
        assert len(writer.done) == 1
        writer.append([record(prompt="2")])
    assert not (tmp_path / PACKED).exists()
    assert [each.prompt for each in read_records(tmp_path)] == ["1", "2"]


def test_a_torn_packed_file_is_named(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        writer.append([record()])
    pack(tmp_path)
    whole = (tmp_path / PACKED).read_bytes()
    (tmp_path / PACKED).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"records\.jsonl\.gz is no packed file of records"):
        read_records(tmp_path)


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        writer.append([record()])
    with (tmp_path / RECORDS).open("a") as file:
        file.write('{"cell": 1}\n')
    with pytest.raises(ValueError, match=r"records\.jsonl:2 is no record"), writing(tmp_path):
        pass
    assert len((tmp_path / RECORDS).read_text().splitlines()) == 2  # left for its owner to mend


def test_unknown_fields_of_later_versions_are_passed_over(tmp_path: Path) -> None:
    with writing(tmp_path) as writer:
        writer.append([record()])
    line = json.loads((tmp_path / RECORDS).read_text())
    (tmp_path / RECORDS).write_text(json.dumps({**line, "mood": "good"}) + "\n")
    assert read_records(tmp_path) == [record()]


def test_a_full_disk_takes_all_of_a_unit_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = os.write, 0

    def fills_up(file: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[:100])

    with writing(tmp_path) as writer:
        writer.append([record(prompt="1")])
        monkeypatch.setattr("draftwood_bench.records.files.os.write", fills_up)
        with pytest.raises(OSError, match=r"the disk is full.*what was measured before is kept"):
            writer.append([record(prompt="2"), record(prompt="3")])
        monkeypatch.undo()
        assert [key[2] for key in writer.done] == ["1"]
        writer.append([record(prompt="4")])
    assert [each.prompt for each in read_records(tmp_path)] == ["1", "4"]


HOLD = """
import sys, time
from pathlib import Path
from draftwood_bench.records.files import writing
with writing(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_two_runs_do_not_write_one_folder(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(OSError, match="another process is writing"), writing(tmp_path):
            pass
        other.kill()
    for _ in range(50):  # its lock ends with it
        try:
            with writing(tmp_path) as writer:
                writer.append([record()])
            break
        except OSError:
            time.sleep(0.1)
    assert len(read_records(tmp_path)) == 1
    assert (tmp_path / LOCK).exists()


def test_a_file_in_the_way_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="choose another --output"), writing(tmp_path / "file"):
        pass


def test_the_common_part_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match=r"no run\.json"):
        read_run(tmp_path)
    write_run(tmp_path, run_info(model="first"))

    def fails(old: object, new: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("draftwood_bench.records.files.os.replace", fails)
    with pytest.raises(OSError, match="the disk is full"):
        write_run(tmp_path, run_info(model="second"))
    assert read_run(tmp_path).model == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(ValueError, match="no description of a benchmark run"):
        read_run(tmp_path)


@pytest.mark.parametrize("busy", [True, False])
def test_a_curve_of_a_busy_hour_is_measured_again(busy: bool, tmp_path: Path) -> None:
    """And one that nothing disturbed stays."""
    found = Calibration(TransformersModel(tiny_llama()), tmp_path, "float32")
    assert found.key is not None
    store(found.key, Curve((1, 8), (0.1, 0.8)), "draftwood generate", busy=busy)
    bench = cast(Workbench, SimpleNamespace(plain=SimpleNamespace(calibration=found)))
    assert (curve_of(bench)["seconds"] == [0.1, 0.8]) is not busy
    assert read(found.key).is_good


@pytest.mark.parametrize("ending", [".weight", ""])  # as floats and as a GGUF file's blocks
def test_an_embedding_that_is_only_looked_up_is_not_counted(
    ending: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shapes = {f"model.embed_tokens{ending}": (7, 3), f"model.layers.0.up{ending}": (2, 3)}

    def counted(more: dict[str, tuple[int, int]]) -> int | None:
        monkeypatch.setattr(
            matrices, "WeightsFolder", lambda _: SimpleNamespace(shapes={**shapes, **more})
        )
        return matrix_sizes(tmp_path)

    assert counted({}) == 27  # it is the output layer too
    assert counted({f"lm_head{ending}": (7, 3)}) == 27
