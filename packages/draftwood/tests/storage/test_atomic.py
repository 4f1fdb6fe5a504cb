"""Files and folders are written whole, and what dead processes left goes away."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from draftwood.loading.downloads import _run
from draftwood.storage.atomic import (
    LOCK,
    MANIFEST,
    explain_write_errors,
    hold,
    publish,
    remove_folder,
    replace_folder,
    write_file,
)


@pytest.fixture(scope="module")
def dead() -> int:
    """Number of a process that was killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.send_signal(signal.SIGKILL)
    return process.pid


def test_files_of_dead_processes_go_and_those_of_living_ones_stay(
    tmp_path: Path, dead: int
) -> None:
    mark = f"{os.getpid()}-{threading.get_ident() + 1}"
    for name in (f".a.{dead}-1", f".a.{mark}", f".ab.{dead}-1", ".a.notes-1"):
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / f".a.{dead}-2").write_text("perhaps of another machine")
    write_file(tmp_path / "a", "whole")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"a", f".a.{mark}", f".ab.{dead}-1", ".a.notes-1", f".a.{dead}-2"}


def test_a_folder_that_a_dead_process_moved_is_put_back(tmp_path: Path, dead: int) -> None:
    for what in ("old", "partial"):
        (tmp_path / f".a.{dead}-1.{what}").mkdir()
        (tmp_path / f".a.{dead}-1.{what}" / what).write_text("")
        os.utime(tmp_path / f".a.{dead}-1.{what}", (0, 0))

    def fail(folder: Path) -> None:
        raise ValueError("it cannot be built")

    with pytest.raises(ValueError, match="cannot be built"):
        replace_folder(tmp_path / "a", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["old"]
    replace_folder(tmp_path / "a", lambda folder: (folder / "new").touch())
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["new"]


def test_who_does_not_wait_for_another_process_is_told(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name in ("a", "there"):
        with FileLock(tmp_path / f".{name}.lock"):
            with pytest.raises(TimeoutError):
                publish(tmp_path / name, "test", lambda new: None, lambda _: False, waits=False)
            with pytest.raises(TimeoutError):
                remove_folder(tmp_path / name, waits=False)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["there"]
    publish(tmp_path / "a", "test", lambda new: None, waits=False)
    remove_folder(tmp_path / "there", waits=False)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["a"]


def test_a_folder_is_held_until_its_lock_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / LOCK
    lock = hold(file, ValueError("first"))
    with pytest.raises(ValueError, match="second"):
        hold(file, ValueError("second"))
    with monkeypatch.context() as patch:  # another process of the same run
        patch.setenv("RANK", "1")
        patch.setenv("WORLD_SIZE", "2")
        hold(file, ValueError("of the run")).release()
    release = threading.Thread(target=lock.release)
    release.start()
    release.join()
    hold(file, ValueError("third")).release()


def test_a_link_is_removed_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "weights").write_text("whole")
    for left in (tmp_path / "link", tmp_path / ".link.partial"):  # of an earlier try
        left.symlink_to(tmp_path / "real")
    remove_folder(tmp_path / "link")
    assert (tmp_path / "real" / "weights").read_text() == "whole"
    assert not any(each.is_symlink() for each in tmp_path.iterdir())


def test_a_folder_that_is_replaced_is_never_seen_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(folder: Path) -> None:
        (folder / "file").write_text("whole")

    def killed(folder: Path, ignore_errors: bool = False) -> None:
        raise KeyboardInterrupt

    publish(tmp_path / "a", "before", build)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            publish(tmp_path / "a", "after", build, lambda _: False)
    assert json.loads((tmp_path / "a" / MANIFEST).read_text())["source"] == "after"
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2
    publish(tmp_path / "a", "again", build, lambda _: False)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["a"]


def test_what_stands_in_a_file_s_place_is_kept_or_written_through(tmp_path: Path) -> None:
    real, link, pipe = (tmp_path / name for name in ("real", "link", "pipe"))
    write_file(real, "old")
    real.chmod(0o640)
    link.symlink_to("real")
    write_file(link, "new")
    assert (real.read_text(), link.is_symlink()) == ("new", True)
    assert real.stat().st_mode & 0o777 == 0o640
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="pipe: it is no regular file; name another one"):
        write_file(pipe, "new")
    assert pipe.is_fifo()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "pipe", "real"]


def test_a_file_in_a_folder_s_place_is_not_told_to_be_made_writable(tmp_path: Path) -> None:
    write_file(tmp_path / "file", "text")
    with pytest.raises(OSError, match="in the way; set DRAFTWOOD_HOME to another folder"):
        write_file(tmp_path / "file" / "below", "text")


def test_a_folder_that_cannot_be_made_is_told_with_the_cure(tmp_path: Path) -> None:
    place = Path("/proc/nowhere/models/some")  # no folder can be made in /proc
    if not Path("/proc/self").is_dir():
        pytest.skip("no /proc")
    told = f"cannot write {place}: its folder cannot be made; set DRAFTWOOD_HOME to another folder"
    with pytest.raises(OSError, match=told):
        publish(place, "-", lambda folder: None)
    with pytest.raises(FileNotFoundError, match="gone"), explain_write_errors(tmp_path / "a"):
        (tmp_path / "gone").read_bytes()


def test_a_program_that_found_no_room_is_told_as_the_disk_s(tmp_path: Path) -> None:
    def build(partial: Path) -> None:
        told = "ERROR: Could not install: [Errno 28] No space left on device: 'x'"
        _run([sys.executable, "-c", f"import sys; sys.exit({told!r})"], "some package")

    with pytest.raises(OSError, match="the disk is full; free some space"):
        publish(tmp_path / "made", "test", build)
    with pytest.raises(OSError, match="check the network"):
        _run([sys.executable, "-c", "import sys; sys.exit('[Errno 101]')"], "some package")


def test_a_folder_that_is_being_replaced_is_no_leftover(tmp_path: Path) -> None:
    live, dead = tmp_path / ".mine.12-34.partial", tmp_path / ".other.partial"
    for folder in (live, dead, tmp_path / ".own.1-2.partial"):
        folder.mkdir()
    publish(tmp_path / "own.1-2", "test", lambda new: None)
    assert live.is_dir()
    assert not dead.exists()
    assert not (tmp_path / ".own.1-2.partial").exists()


def test_a_folder_behind_a_link_is_replaced_there(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "large disk")
    for name in ("first", "second"):
        replace_folder(tmp_path / "link", lambda folder, name=name: (folder / name).touch())
    assert (tmp_path / "link").is_symlink()
    assert [each.name for each in (tmp_path / "large disk").iterdir()] == ["second"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["large disk", "link"]
