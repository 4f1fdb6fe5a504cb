"""Without a compiler, the best prebuilt library that the CPU can run is taken."""

import ctypes
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest
import torch

from draftwood.models.native import NativeModel, has_int8
from draftwood.native import compiler as native_compiler
from draftwood.native import library, prebuilt
from draftwood.native.compiler import FLAGS, LIBRARY, CompilerError, compiler
from draftwood.storage import atomic
from draftwood.storage.atomic import write_manifest
from draftwood.testing import tiny_llama
from native.test_dots import ARM_COMPILER, EMULATOR, differing, needs_arm, results_elsewhere
from wheels import PIP, best_level, built_wheel

LEVELS = prebuilt.LEVELS["x86_64"]
needs_compiler = pytest.mark.skipif(not library.available(), reason="no C++ compiler")


def forget() -> None:
    library.library.cache_clear()
    library.available.cache_clear()
    library.key.cache_clear()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """No programs to be found, and nothing compiled before."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CXXFLAGS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("DRAFTWOOD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path / "prebuilt")
    (tmp_path / "prebuilt").mkdir()
    forget()
    yield tmp_path / "prebuilt"
    forget()


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package with files for all levels, on Linux with an x86-64 CPU."""
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "platform", "linux")
    for level in LEVELS:
        level.path.touch()
        prebuilt.write_digest(level.path)
    return tmp_path


def best_of(monkeypatch: pytest.MonkeyPatch, flags: str) -> str | None:
    monkeypatch.setattr(prebuilt, "processor", lambda: f"flags\t\t: {flags}")
    level = prebuilt.best()
    return None if level is None else level.name


V3 = "fpu sse4_2 avx avx2 bmi1 bmi2 f16c fma abm movbe"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("fpu sse4_2 avx", None),
        (V3.replace(" fma", ""), None),
        (V3, "x86-64-v3"),
        (f"{V3} avx_vnni", "x86-64-v3-vnni"),
        (f"{V3} avx512f", "x86-64-v3"),
        (V4, "x86-64-v4"),
        (f"{V4} avx512_vnni", "x86-64-v4-vnni"),
        (f"{V4} avx512_bf16", "x86-64-v4"),
        (f"{V4} avx_vnni avx512_vnni avx512_bf16", "x86-64-v4-bf16"),
        (f"{V4} avx512_vnni avx512_bf16 amx_tile amx_int8 amx_bf16", "x86-64-v4-amx"),
    ],
)
def test_the_best_level_that_the_cpu_can_run_is_taken(
    flags: str, name: str | None, shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert best_of(monkeypatch, flags) == name


def test_levels_that_the_package_lacks_are_passed_over(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shipped / "x86-64-v4.so").unlink()
    assert best_of(monkeypatch, V4) == "x86-64-v3"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert best_of(monkeypatch, V4) is None


def test_without_compiler_and_prebuilt_library_the_error_names_the_cure(no_compiler: Path) -> None:
    with pytest.raises(CompilerError, match=r"there is no C\+\+ compiler; install one"):
        library.library()
    assert not library.available()


@pytest.mark.parametrize(
    ("system", "cure"),
    [
        ("linux", "there is no C++ compiler; install one: apt install g++, dnf install gcc-c++"),
        ("darwin", "there is no C++ compiler; run: xcode-select --install"),
        ("win32", "there is no C++ compiler; run draftwood in WSL (wsl --install)"),
    ],
)
def test_each_system_is_told_its_own_cure(
    system: str, cure: str, no_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    said = library.why_missing()
    assert said.startswith(cure)
    assert "\n" not in said
    monkeypatch.setenv("CXX", "c--")
    assert library.why_missing().startswith("$CXX names c--, and there is no such program")


@needs_compiler
def test_a_prebuilt_library_serves_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    usual = library.library()
    exact = NativeModel(tiny_llama(0)).start().extend([1, 2, 3, 4]).logits
    with_int8 = has_int8(torch.device("cpu"))
    folder = request.getfixturevalue("no_compiler")
    level = prebuilt.CPULevel("here", (), frozenset())
    shutil.copy(usual._name, level.path)
    prebuilt.write_digest(level.path)
    assert level.path.parent == folder
    monkeypatch.setitem(prebuilt.LEVELS, platform.machine(), (level,))
    assert library.library()._name == str(level.path)
    assert has_int8(torch.device("cpu")) == with_int8
    assert torch.equal(NativeModel(tiny_llama(0)).start().extend([1, 2, 3, 4]).logits, exact)
    assert not list(folder.parent.glob("home/kernels/*/*"))


@pytest.fixture
def served(no_compiler: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prebuilt library that this CPU can run: any that ``ctypes`` opens."""
    level = prebuilt.CPULevel("here", (), frozenset())
    level.path.write_bytes(b"a library")
    prebuilt.write_digest(level.path)
    monkeypatch.setitem(prebuilt.LEVELS, platform.machine(), (level,))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", opened)
    return level.path


def opened(path: str) -> str:
    """Stands in for opening a library: one that was compiled may not be run."""
    if path.endswith(LIBRARY):
        raise OSError(f"{path}: failed to map segment from shared object")
    return path


def warned_by_loading() -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert str(library._load()).endswith("here.so")
    return [str(each.message) for each in told]


def test_no_library_serves_where_none_is_wanted(
    served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warned_by_loading() == []
    monkeypatch.setenv("CXX", "none")
    monkeypatch.setenv("CXXFLAGS", "-mno-avx512f")
    with pytest.raises(CompilerError, match=r"^CXX=none does without the C\+\+ library; unset it$"):
        library._load()
    assert not library.available()


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"CXX": "c--"}, r"\$CXX"),
        ({"CXXFLAGS": "-mno-avx512f"}, r"\$CXXFLAGS"),
        ({"CXX": "c--", "CXXFLAGS": "-O1"}, r"\$CXX and \$CXXFLAGS"),
    ],
)
def test_a_prebuilt_library_says_that_flags_have_no_effect_on_it(
    given: dict[str, str], names: str, served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    (told,) = warned_by_loading()
    assert re.match(
        names + r" had no effect, as the prebuilt library here serves .*: (\$CXX n|th)", told
    )


def test_an_archive_is_told_to_be_unpacked(
    no_compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_compiler, "SOURCES", tmp_path / "draftwood.zip" / "native")
    assert re.match(
        r"the C\+\+ sources in .* are no files; install .*unpack", library.why_missing()
    )


def compiled_before(folder: Path) -> Path:
    """A file in the place of the compiled library, as if it were one."""
    kept = folder / "home" / "kernels" / library.key()
    kept.mkdir(parents=True)
    (kept / LIBRARY).write_bytes(b"a library")
    write_manifest(kept, "a test", {})
    return kept / LIBRARY


def test_a_disk_from_which_nothing_runs_is_told_with_the_cure(
    no_compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", opened)
    compiled_before(tmp_path)
    told = (
        r"cannot be loaded \(.*failed to map segment.*\); set DRAFTWOOD_HOME to .*programs may run"
    )
    assert re.search(told, library.why_missing())


def test_a_library_that_may_not_be_read_is_not_called_damaged(
    no_compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    path = compiled_before(tmp_path)
    monkeypatch.setattr(atomic, "sha256", refuse)
    assert library.why_missing().startswith(f"{path} may not be read; make it readable, or set D")
    assert json.loads((path.parent / "draftwood.json").read_text())["files"]


def test_old_libraries_go_though_another_process_removes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [str(number) for number in range(library.MOST_KEPT + 3)]
    for number, name in enumerate(names):
        (tmp_path / name).mkdir()
        (tmp_path / name / LIBRARY).touch()
        os.utime(tmp_path / name, (number, number))
    stat = Path.stat

    def gone(path: Path, **options: bool) -> os.stat_result:
        if path.name == names[1]:
            raise FileNotFoundError(path)
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", gone)
    library._forget_old(tmp_path)
    monkeypatch.undo()
    left = sorted(int(path.name) for path in tmp_path.iterdir())
    assert left == [1, *range(3, len(names))]


@needs_compiler
def test_a_compiler_at_hand_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> None:
        raise AssertionError("nobody needs a prebuilt library")

    monkeypatch.setattr(prebuilt, "best", never)
    assert library.library.__wrapped__()._name.endswith("decoder.so")


def test_a_prebuilt_library_that_cannot_be_loaded_is_named(
    no_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = prebuilt.CPULevel("broken", (), frozenset())
    level.path.write_bytes(b"no library")
    prebuilt.write_digest(level.path)
    monkeypatch.setitem(prebuilt.LEVELS, platform.machine(), (level,))
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(CompilerError, match=r"no C\+\+ compiler; .*prebuilt library fails.*broken"):
        library.library()


def test_the_tag_names_the_oldest_glibc_that_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    first, second = tmp_path / "a.so", tmp_path / "b.so"
    first.write_bytes(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0")
    second.write_bytes(b"\0GLIBC_2.17\0")
    assert prebuilt.platform_tag([first, second]) == "manylinux_2_34_x86_64"
    second.write_bytes(b"nothing of glibc")
    assert prebuilt.platform_tag([second]) == "linux_x86_64"


OLD = 28
"""Version 2.28 of glibc, which the distributions of 2019 have."""


def prebuilt_wheel(folder: Path, levels: str, **settings: str) -> Path:
    """A wheel of the core, with libraries for these levels that were quick to compile."""
    return built_wheel("draftwood", folder, DRAFTWOOD_PREBUILT=levels, CXXFLAGS="-O0", **settings)


def assert_old(wheel: Path, machine: str, objdump: str = "objdump") -> None:
    """Old distributions take it, and have what its libraries ask for."""
    found = re.fullmatch(rf".*-py3-none-manylinux_2_(\d+)_{machine}\.whl", wheel.name)
    assert found, wheel.name
    assert int(found[1]) <= OLD, wheel.name
    with zipfile.ZipFile(wheel) as opened:
        libraries = [name for name in opened.namelist() if name.endswith(".so")]
        assert libraries
        for name in libraries:
            command = [objdump, "-T", "-p", opened.extract(name, wheel.parent / "unpacked")]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            asked = {int(version) for version in re.findall(r"GLIBC_2\.(\d+)", said)}
            assert max(asked) <= int(found[1])
            assert not re.findall(r"GLIBCXX|CXXABI|GCC_", said)
            needed = set(re.findall(r"NEEDED\s+(\S+)", said))
            assert needed <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("level", [pytest.param("armv8.2-dotprod", marks=needs_arm)])
def test_a_wheel_for_arm_multiplies_to_the_same_bits(level: str, tmp_path: Path) -> None:
    wheel = prebuilt_wheel(tmp_path, level, DRAFTWOOD_MACHINE="aarch64", CXX=ARM_COMPILER)
    assert_old(wheel, "aarch64", ARM_COMPILER.replace("g++", "objdump"))
    held = zipfile.ZipFile(wheel).extract(f"draftwood/native/prebuilt/{level}.so", tmp_path)
    flags = ["-march=armv8.2-a+dotprod", f'-DLIBRARY="{held}"']
    run = [str(EMULATOR), "-L", "/usr/aarch64-linux-gnu", "-cpu", "max"]
    _, found = results_elsewhere(tmp_path, ARM_COMPILER, flags, run)
    assert differing(found) == []


THROWING = """
#include <cmath>
#include <mutex>
#include <stdexcept>
#include <thread>
extern "C" int caught(int given) {
    try {
        if (given) throw std::runtime_error("planted");
    } catch (const std::exception&) { return 7; }
    return 1;
}
extern "C" double sum(double x) {
    static std::once_flag once;
    double found = 0;
    std::mutex one;
    std::call_once(once, [&] { found = std::exp(x) + std::exp2(x) + std::log(x); });
    return one.try_lock() ? found + std::pow(x, 1.5) : 0;
}
"""


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="versions of glibc")
def test_older_functions_of_glibc_do_what_the_newest_do(tmp_path: Path) -> None:
    source, made = tmp_path / "throwing.cpp", tmp_path / "throwing.so"
    source.write_text(THROWING)
    files = [str(source), str(prebuilt.OLDER_GLIBC), "-o", str(made)]
    command = [str(compiler()), *FLAGS, "-fno-builtin", "-shared", *prebuilt.PORTABLE, *files]
    subprocess.run(command, check=True)
    found = ctypes.CDLL(str(made))
    found.sum.restype, found.sum.argtypes = ctypes.c_double, [ctypes.c_double]
    assert [found.caught(each) for each in (0, 1)] == [1, 7]
    wanted = math.exp(2.5) + math.pow(2.0, 2.5) + math.log(2.5) + math.pow(2.5, 1.5)
    assert found.sum(2.5) == pytest.approx(wanted, rel=1e-15)
    assert int(prebuilt.platform_tag([made]).split("_")[2]) <= OLD


@pytest.mark.proof
@pytest.mark.timeout(600)
@needs_compiler
@pytest.mark.skipif(platform.machine() not in prebuilt.LEVELS, reason="no levels of this machine")
def test_a_wheel_holds_libraries_that_run_without_a_compiler(tmp_path: Path) -> None:
    """It is installed beside the copy it is built from, and run with no compiler on the path."""
    levels, best = prebuilt.LEVELS[platform.machine()], best_level()
    some = f"{levels[0].name},{best}"  # all of them take minutes
    wheel = prebuilt_wheel(tmp_path, some)
    assert_old(wheel, platform.machine())
    names = zipfile.ZipFile(wheel).namelist()
    held = [level for level in levels if f"draftwood/native/prebuilt/{level.name}.so" in names]
    assert levels[0] in held
    site = tmp_path / "site"
    subprocess.run(
        [*PIP, "install", "--quiet", "--no-deps", "-t", str(site), str(wheel)], check=True
    )
    program = "from draftwood.native import library; print(library.library()._name)"
    bare = {"PATH": "", "PYTHONPATH": str(site), "DRAFTWOOD_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, check=True, env=bare, capture_output=True, text=True).stdout
    assert Path(said.strip()) == site / "draftwood" / "native" / "prebuilt" / f"{best}.so"
