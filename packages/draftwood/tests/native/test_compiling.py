"""The library is compiled in parts side by side, whole or not at all, and made again where the file
is not what was made.

A stand-in for the compiler makes the parts in no time and takes the library that is there for the
linked one.
"""

import io
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from checkout import ROOT
from draftwood.native import compiler, library, prebuilt
from draftwood.native.compiler import WHOLE_COPIES, CompilerError, compile_library
from draftwood.storage.atomic import MANIFEST, is_intact, write_manifest

pytestmark = pytest.mark.skipif(not library.available(), reason="no C++ compiler")

STAND_IN = """#!/bin/sh
# $LOG has a line for each begin and end; the part $WRONG fails, and so does the flag $REFUSED
case " $* " in *" $REFUSED "*) exit 1;; *" -fsyntax-only "*) exit 0;; esac
out=; part=; for word; do
    case "$before" in -o) out="$word";; -c) part="$word";; esac; before="$word"
done
name="$(basename "${part:-link}")"
echo "begin $name" >> "$LOG"
if [ "$name" = "$WRONG" ]; then echo "$name: error: planted" >&2; exit 1; fi
if [ -n "$part" ]; then sleep "$SECONDS_OF_PART"; : > "$out"; else cp "$LIBRARY" "$out"; fi
echo "end $name" >> "$LOG"
"""
PROGRAM = """
import warnings
import torch
from draftwood.models.native import NativeModel
from draftwood.testing import tiny_llama
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    logits = NativeModel(tiny_llama(0)).start().extend([1, 2, 3, 4]).logits
print(logits.numpy().tobytes().hex())
for each in told:
    print(str(each.message))
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of a compiler that is called in place of the real one, for a home of its own."""
    script, log = tmp_path / "c++", tmp_path / "log"
    real = library.library()._name  # while the compiler is the real one
    script.write_text(STAND_IN)
    script.chmod(0o755)
    log.touch()
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("LOG", str(log))
    monkeypatch.setenv("LIBRARY", real)
    monkeypatch.setenv("SECONDS_OF_PART", "0")
    monkeypatch.setenv("WRONG", "none")
    monkeypatch.setenv("REFUSED", "none")
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))
    return log


def run(program: str = PROGRAM) -> list[str]:
    """Output of a process that uses the library."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-1000:]}"
    return done.stdout.splitlines()


def made_in(home: Path) -> Path:
    """The folder of the only library of a home."""
    (found,) = (path for path in (home / "kernels").iterdir() if not path.name.startswith("."))
    return found


def flip(path: Path) -> None:
    """Change a byte in the middle of what the library runs."""
    content = bytearray(path.read_bytes())
    for place in range(len(content) // 4, len(content) // 2, 997):
        content[place] ^= 0x40
    replace(path, bytes(content))


def replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def forget_digest(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["files"][library.LIBRARY]["sha256"]
    (folder / MANIFEST).write_text(json.dumps(manifest))


DAMAGES = {
    "truncated": lambda folder: replace(
        folder / library.LIBRARY, (folder / library.LIBRARY).read_bytes()[: 1 << 18]
    ),
    "flipped": lambda folder: flip(folder / library.LIBRARY),
    "no digest": forget_digest,
}
FURTHER = {
    "gone": lambda folder: (folder / library.LIBRARY).unlink(),
    "no manifest": lambda folder: (folder / MANIFEST).unlink(),
    "half a manifest": lambda folder: (folder / MANIFEST).write_text('{"files": '),
    "another manifest": lambda folder: (folder / MANIFEST).write_text('{"files": []}'),
    "no files": lambda folder: (folder / MANIFEST).write_text("[]"),
}


def test_flags_for_whole_copies_go_to_compilers_that_know_them(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(os.environ["CXX"])
    script.write_text(STAND_IN.replace('echo "begin', 'echo "$*" >> "$LOG.words"; echo "begin'))
    words = Path(f"{stand_in}.words")
    compile_library(tmp_path / "made.so", [])
    assert all(WHOLE_COPIES[0] in line for line in words.read_text().splitlines())
    words.unlink()
    monkeypatch.setenv("REFUSED", WHOLE_COPIES[0])
    compile_library(tmp_path / "made.so", [])
    assert not any(flag in words.read_text() for flag in WHOLE_COPIES)


@pytest.mark.proof
def test_a_damaged_library_is_made_again_and_says_the_same(stand_in: Path, tmp_path: Path) -> None:
    logits, *told = run()
    assert not told
    folder = made_in(tmp_path / "home")
    whole = (folder / library.LIBRARY).read_bytes()
    for name, damage in DAMAGES.items():
        damage(folder)
        again, *told = run()
        assert again == logits, name
        assert [line.count("is damaged; it is compiled again") for line in told] == [1], name
        assert (made_in(tmp_path / "home") / library.LIBRARY).read_bytes() == whole, name
    assert run() == [logits]  # nothing is made again where nothing is wrong
    assert stand_in.read_text().count("end link") == 1 + len(DAMAGES)


@pytest.mark.parametrize("name", [*DAMAGES, *FURTHER])
def test_all_damages_are_noticed(name: str, tmp_path: Path) -> None:
    shutil.copy(library.library()._name, tmp_path / library.LIBRARY)
    write_manifest(tmp_path, "a test", {})
    assert is_intact(tmp_path, library.LIBRARY)
    {**DAMAGES, **FURTHER}[name](tmp_path)
    assert not is_intact(tmp_path, library.LIBRARY)


def test_processes_that_start_together_compile_once(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECONDS_OF_PART", "0.2")
    program = "from draftwood.native.library import library; print(library()._name)"
    both = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(2)
    ]
    said = {process.communicate()[0] for process in both}
    assert len(said) == 1
    assert b"decoder.so" in said.pop()
    lines = stand_in.read_text().splitlines()
    names = [path.name for path in compiler.parts()]
    assert sorted(lines) == sorted(f"{at} {n}" for at in ("begin", "end") for n in [*names, "link"])


def test_a_killed_process_leaves_nothing_half_written(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECONDS_OF_PART", "2")
    program = "from draftwood.native.library import library; print(library()._name)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    wait_for(lambda: "begin" in stand_in.read_text())
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = [path.name for path in (tmp_path / "home" / "kernels").iterdir()]
    assert kept
    assert all(name.startswith(".") for name in kept)
    monkeypatch.setenv("SECONDS_OF_PART", "0")
    (name,) = run(program)
    left = [path for path in Path(name).parents[1].iterdir() if path.is_dir()]
    assert left == [Path(name).parent]
    assert sorted(path.name for path in left[0].iterdir()) == sorted([MANIFEST, library.LIBRARY])


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.02)


def most_at_once(lines: Sequence[str]) -> int:
    at_work, most = 0, 0
    for line in lines:
        at_work += 1 if line.startswith("begin") else -1
        most = max(most, at_work)
    return most


@pytest.mark.parametrize("cores", [1, 3])
def test_parts_are_compiled_side_by_side(
    cores: int, stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECONDS_OF_PART", "0.3")
    monkeypatch.setattr(compiler, "cpus", lambda: cores)
    told: list[tuple[int, int]] = []
    compile_library(tmp_path / "made.so", [], lambda done, of: told.append((done, of)))
    lines = stand_in.read_text().splitlines()
    assert most_at_once(lines) == cores
    assert lines[-2:] == ["begin link", "end link"]
    steps = len(sources()) + 1
    assert told == [(step, steps) for step in range(1, steps + 1)]
    assert (tmp_path / "made.so").read_bytes() == Path(library.library()._name).read_bytes()
    assert not list(tmp_path.glob(".compiling-*"))


def sources() -> set[Path]:
    """All files but the one that prebuilt libraries alone have."""
    return set(compiler.SOURCES.rglob("*.cpp")) - {prebuilt.OLDER_GLIBC}


def test_all_parts_are_compiled_and_the_longest_begin() -> None:
    assert set(compiler.parts()) == sources()
    first = [path.name for path in compiler.parts()[: len(compiler.LONGEST)]]
    assert sorted(first) == sorted(compiler.LONGEST)


def test_a_part_that_fails_ends_the_others(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECONDS_OF_PART", "60")
    monkeypatch.setenv("WRONG", "heads.cpp")
    monkeypatch.setattr(compiler, "cpus", lambda: 20)
    (tmp_path / "made.so").write_text("an older one")
    since = time.monotonic()
    with pytest.raises(CompilerError, match=r"could not compile .*heads\.cpp: error: planted"):
        compile_library(tmp_path / "made.so", [])
    assert time.monotonic() - since < 30
    assert (tmp_path / "made.so").read_text() == "an older one"
    assert not list(tmp_path.glob(".compiling-*"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("seconds", [None, 21.4])
def test_progress_says_how_long_it_took_last(
    seconds: float | None, stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = tmp_path / "home" / "kernels"
    for place, kept in enumerate([3.0, seconds]):  # the newest counts
        (kernels / str(place)).mkdir(parents=True)
        text = json.dumps({"seconds": str(kept)} if seconds and kept else {"files": {}})
        (kernels / str(place) / MANIFEST).write_text(text)
        os.utime(kernels / str(place) / MANIFEST, (place, place))
    monkeypatch.setenv("SECONDS_OF_PART", "0.2")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    library.key.cache_clear()
    try:
        folder = library._compiled().parent
    finally:
        library.key.cache_clear()
    shown = terminal.getvalue()
    assert "compiling for this CPU, once" in shown
    assert ("(last time took 21 s)" in shown) == (seconds is not None)
    assert f"/{len(compiler.parts()) + 1}" in shown
    assert float(json.loads((folder / MANIFEST).read_text())["seconds"]) > 0.2


def test_a_damaged_prebuilt_library_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "platform", "linux")
    levels = tuple(prebuilt.CPULevel(name, (), frozenset()) for name in ("plain", "better"))
    monkeypatch.setitem(prebuilt.LEVELS, prebuilt.platform.machine(), levels)
    for level in levels:
        level.path.write_text(level.name)
        prebuilt.write_digest(level.path)
    assert prebuilt.best() == levels[1]
    levels[1].path.write_text("bettor")
    with pytest.warns(UserWarning, match=r"better\.so is damaged; install draftwood again"):
        assert prebuilt.best() == levels[0]
    prebuilt.digest_path(levels[0].path).unlink()
    with pytest.warns(UserWarning, match="is damaged"):
        assert prebuilt.best() is None


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of another machine")
@pytest.mark.skipif(compiler.compiler() is None, reason="there is no C++ compiler")
def test_flags_of_the_page_on_wrong_tokens_leave_instructions_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = (ROOT / "docs" / "wrong-token.md").read_text(encoding="utf-8")
    (vnni,) = re.findall(r'CXXFLAGS="([^"]+)" draftwood check --bisect', page)
    (wide,) = re.findall(r"`(-mno-avx512f)`: without AVX-512", page)
    everything = defined("-march=sapphirerapids")
    for flags, names in ((vnni, ("__AVX512VNNI__", "__AVXVNNI__")), (wide, ("__AVX512F__",))):
        assert set(names) <= everything
        monkeypatch.setenv("CXXFLAGS", flags)
        assert not set(names) & defined("-march=sapphirerapids", *compiler.own_flags())


def defined(*flags: str) -> set[str]:
    """Macros by which the sources choose instructions, where these flags are given."""
    command = [str(compiler.compiler()), *flags, "-dM", "-E", "-x", "c++", os.devnull]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split()[1] for line in said.splitlines()}
