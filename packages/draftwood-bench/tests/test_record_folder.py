"""Folders of records: one writer, settings and prompts of their own, whole lines."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftwood_bench.records import files
from draftwood_bench.run import record_folder
from draftwood_bench.run.record_folder import RecordFolder, folders_of


@dataclass(frozen=True)
class Told:
    """A record."""

    prompt: str
    score: float
    parts: Sequence[int] = ()


@pytest.fixture
def folder(tmp_path: Path) -> RecordFolder[Told]:
    found = RecordFolder(tmp_path / "run", "told", Told)
    found.begin({"rule": "one"}, {"a": "first", "b": "second"})
    found.append(Told("a", 1.0, [3]))
    return found


def test_records_and_settings_come_back(folder: RecordFolder[Told]) -> None:
    assert folder.read() == [Told("a", 1.0, [3])]
    assert folder.settings() == {"rule": "one"}
    folder.begin({"rule": "one"}, {"b": "second", "c": "third"})  # more of them
    assert folder.settings() == {"rule": "one"}
    with pytest.raises(ValueError, match="a run of other settings; give another folder") as error:
        folder.begin({"rule": "two", "knob": 1})
    assert str(error.value).endswith('(rule: "one" there, "two" here, knob: null there, 1 here)')
    with pytest.raises(ValueError, match=r"told\.json does not say 'knob'"):
        folder.settings()["knob"]


def test_other_prompts_of_the_same_names_are_refused(folder: RecordFolder[Told]) -> None:
    for changed in ("a", "b"):
        with pytest.raises(ValueError, match=f"a run on another prompt {changed}; give another"):
            folder.begin({"rule": "one"}, {changed: "other"})
    folder.begin({"rule": "one"})


def test_folders_of_before_take_prompts_of_any_digest(folder: RecordFolder[Told]) -> None:
    file = folder.folder / "told.json"
    told = json.loads(file.read_text())
    del told["digests of prompts"]
    file.write_text(json.dumps(told))
    folder.begin({"rule": "one"}, {"a": "other"})
    with pytest.raises(ValueError, match="another prompt a"):
        folder.begin({"rule": "one"}, {"a": "first"})


def test_other_weights_of_a_models_name_are_refused(
    folder: RecordFolder[Told], tmp_path: Path
) -> None:
    place = tmp_path / "own"
    place.mkdir()
    (place / "model.safetensors").write_bytes(b"weights")
    lms: list[Any] = [
        SimpleNamespace(name="own", calibration=SimpleNamespace(folder=place)),
        SimpleNamespace(name="in memory", calibration=SimpleNamespace(folder=None)),
    ]
    for _ in range(2):
        folder.begin({"rule": "one"}, models=folders_of(*lms))
    assert folder.settings() == {"rule": "one"}
    (place / "model.safetensors").write_bytes(b"others")
    with pytest.raises(ValueError, match="a run on another model own; give another folder"):
        folder.begin({"rule": "one"}, models=folders_of(*lms))


def test_records_without_settings_do_not_go_on(folder: RecordFolder[Told]) -> None:
    (folder.folder / "told.json").unlink()
    with pytest.raises(ValueError, match=r"holds records but no told\.json; give another folder"):
        folder.begin({"rule": "one"})


BEGUN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_record_folder import RecordFolder, Told
RecordFolder(Path(sys.argv[1]), "told", Told).begin({"rule": "one"})
"""


def begun_elsewhere(folder: Path) -> str:
    """Error of another process that begins a run there; "" where it may."""
    code = [sys.executable, "-c", BEGUN, str(folder), str(Path(__file__).parent)]
    done = subprocess.run(code, capture_output=True, text=True, timeout=120)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def test_one_process_writes_a_folder(
    folder: RecordFolder[Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "another process is writing" in begun_elsewhere(folder.folder)
    for lock in record_folder._HELD.values():
        lock.release()
    monkeypatch.setattr(record_folder, "_HELD", {})
    assert begun_elsewhere(folder.folder) == ""


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"\xff": 1}', "codec can't decode"),
        (b"[1]", "it is no object"),
        (b'{"prompt": "b"}', "score"),
        (b'{"prompt": "b", "score": "much"}', "score cannot be 'much'"),
        (b'{"prompt": "b", "score": 1.0, "parts": 3}', "parts cannot be 3"),
    ],
)
def test_damaged_lines_are_named(folder: RecordFolder[Told], line: bytes, why: str) -> None:
    with folder.file.open("ab") as file:
        file.write(b"\n" + line + b"\n")
    with pytest.raises(ValueError, match=r"told\.jsonl:3 is no record .*delete that line") as told:
        folder.read()
    assert why in str(told.value)
    assert "\n" not in str(told.value)


def test_a_torn_line_does_not_count_and_goes_with_the_next_run(folder: RecordFolder[Told]) -> None:
    whole = folder.file.read_bytes()
    with folder.file.open("ab") as file:
        file.write(b'{"prompt": "b", "sc')
    assert folder.read() == [Told("a", 1.0, [3])]
    assert folder.file.read_bytes() != whole  # who only reads writes nothing
    folder.begin({"rule": "one"})
    assert folder.file.read_bytes() == whole


def test_a_full_disk_leaves_no_part_of_a_record(
    folder: RecordFolder[Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def full(file: int, data: bytes) -> int:
        write(file, data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "write", full)
    with pytest.raises(OSError, match=r"cannot write .*told\.jsonl: the disk is full"):
        folder.append(Told("b", 2.0))
    assert folder.read() == [Told("a", 1.0, [3])]
