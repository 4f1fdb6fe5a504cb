"""Folders are made whole or not at all, whatever happens to the disk and to other processes."""

import errno
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from draftwood.loading.folders import verify
from draftwood.storage.atomic import publish


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        OSError, match=f"cannot write {tmp_path}/models/m: the disk is full; free some space"
    ):
        publish(tmp_path / "models" / "m", "test", fill)
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".m.lock"]


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    (tmp_path / ".dead.partial").mkdir()
    (tmp_path / ".new.partial").mkdir()
    (tmp_path / ".new.partial" / "old").write_text("half")

    def build(folder: Path) -> None:
        assert not list(folder.iterdir())
        publish(tmp_path / "other", "test", lambda inner: None)  # cleans up too, but we are alive
        (folder / "new").write_text("whole")

    verify(publish(tmp_path / "new", "test", build))
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".lock") == [
        "new",
        "other",
    ]


def test_two_makers_of_one_folder_build_it_once(tmp_path: Path) -> None:
    built = []

    def build(folder: Path) -> None:
        built.append(folder)
        time.sleep(0.2)
        (folder / "file").write_text("whole")

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: publish(tmp_path / "m", "test", build), range(4)))
    assert made == [tmp_path / "m"] * 4
    assert len(built) == 1
