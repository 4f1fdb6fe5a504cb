"""Files of what is published, and all of it installed where nothing of it was."""

import email
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

from checkout import ROOT, SOURCES
from draftwood.version import __version__
from wheels import best_level, copied, sdist_of, wheel_of

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]
STRAY = (".DS_Store", "notes.orig", "decoder.so", "__pycache__/old.pyc")
KEY = "a-key"


def module_of(package: str) -> str:
    return package.replace("-", "_")


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources of all packages, with files that nobody should be sent."""
    folder = tmp_path_factory.mktemp("copies")
    for package in SOURCES:
        code = copied(package, folder) / "src" / module_of(package)
        for name in STRAY:
            (code / name).parent.mkdir(exist_ok=True)
            (code / name).write_text("stray")
        (code.parents[1] / "tests").mkdir()
        (code.parents[1] / "tests" / "test_stray.py").write_text("stray")
    return folder


@pytest.fixture(scope="module")
def pure(copies: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel of plain Python of each package."""
    folder = tmp_path_factory.mktemp("pure")
    return {package: wheel_of(copies / package, folder) for package in SOURCES}


def held(wheel: Path) -> set[str]:
    """Files of a wheel but for its own."""
    names = zipfile.ZipFile(wheel).namelist()
    return {name for name in names if ".dist-info/" not in name}


def wanted(package: str) -> set[str]:
    """Files that a wheel of a package has."""
    source = SOURCES[package]
    found = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    built = ("__pycache__", "prebuilt", f"{module_of(package)}.egg-info")
    return {path.as_posix() for path in found if not set(path.parts) & set(built)}


@pytest.mark.parametrize("package", SOURCES)
def test_a_wheel_holds_the_package_and_nothing_else(package: str, pure: dict[str, Path]) -> None:
    wheel = pure[package]
    assert wheel.name == f"{module_of(package)}-{__version__}-py3-none-any.whl"
    assert held(wheel) == wanted(package)
    assert f"{module_of(package)}/py.typed" in held(wheel)
    with zipfile.ZipFile(wheel) as opened:
        info = f"{module_of(package)}-{__version__}.dist-info"
        licence = opened.read(f"{info}/licenses/LICENSE").decode()
        told = email.message_from_bytes(opened.read(f"{info}/METADATA"))
    assert licence == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert (told["Version"], told["License-Expression"]) == (__version__, "Apache-2.0")
    assert told["Requires-Python"] == ">=3.10"


@pytest.mark.parametrize("package", SOURCES)
def test_sources_give_the_same_wheel(
    package: str, copies: Path, pure: dict[str, Path], tmp_path: Path
) -> None:
    sources = sdist_of(copies / package, tmp_path / "sdist")
    with tarfile.open(sources) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert not [name for name in names if name.startswith(("tests", "benchmarks"))]
    assert not [name for name in names if name.endswith(STRAY)]
    assert held(wheel_of(sources, tmp_path)) == held(pure[package])


def test_the_oldest_python_can_meet_every_pin(tmp_path: Path) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    there = {"python_version": "3.10"}
    kept = [
        f"{pin.name}{pin.specifier}"
        for pin in pins
        if pin.marker is None or pin.marker.evaluate(there)
    ]
    assert len(kept) > 100
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps"]
    for_it = ["--python-version", "3.10", "--only-binary", ":all:", "--target", str(tmp_path)]
    done = subprocess.run([*command, *for_it, *kept], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def empty_environment(folder: Path, wheels: list[str]) -> Path:
    """Programs of a new virtual environment with these wheels and what they need."""
    venv.create(folder, with_pip=True)
    pinned = ["--constraint", str(ROOT / "constraints.txt")]
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *pinned, *wheels]
    subprocess.run(command, check=True, env=bare(folder / "bin"))
    return folder / "bin"


def bare(programs: Path, **more: str) -> dict[str, str]:
    """Variables of a user who has these programs, and no compiler."""
    hidden = ("PYTHONPATH", "CXX", "DRAFTWOOD_DATA", "DRAFTWOOD_CONFIG")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    home = str(programs.parent / "home")
    return {**kept, "PATH": str(programs), "HOME": home, "DRAFTWOOD_HOME": home, **more}


def said(programs: Path, *words: str) -> str:
    command = [str(programs / words[0]), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, env=bare(programs))
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def serving(programs: Path, model: str) -> Iterator[httpx.Client]:
    """A server of a model, and a client of it that has its key."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [str(programs / "draftwood"), "serve", model, "--port", str(port), "--json"]
    told = bare(programs, DRAFTWOOD_API_KEY=KEY)
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=told)
    assert running.stdout is not None
    try:
        ready = json.loads(running.stdout.readline())
        headers = {"Authorization": f"Bearer {KEY}"}
        with httpx.Client(base_url=ready["address"], headers=headers, timeout=60) as client:
            yield client
    finally:
        running.terminate()
        running.stdout.close()
        assert running.wait(40) == 0


def test_all_of_it_runs_in_an_empty_environment(
    copies: Path, pure: dict[str, Path], target: str, tmp_path: Path
) -> None:
    """With one level of CPUs, compiled quickly; `make wheel` makes all."""
    level = best_level()
    # the core's own copy, as what was built for another wheel would be packed too
    core = shutil.copytree(copies / "draftwood", tmp_path / "draftwood")
    shutil.rmtree(core / "build", ignore_errors=True)
    wheel = wheel_of(core, tmp_path, DRAFTWOOD_PREBUILT=level, CXXFLAGS="-O0")
    others = [str(path) for package, path in pure.items() if package != "draftwood"]
    programs = empty_environment(tmp_path / "venv", [str(wheel), *others])
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    program = "from draftwood.native import library; print(library.library()._name)"
    found = Path(said(programs, "python", "-c", program).strip())
    assert found == packages / "draftwood" / "native" / "prebuilt" / f"{level}.so"
    assert said(programs, "draftwood", "--version").strip().endswith(__version__)
    assert "layer-skip" in said(programs, "draftwood", "methods", "--all")
    asked = ("--model", target, "--max-new-tokens", "12", "--temperature", "0")
    text = said(programs, "draftwood", "generate", "Hi", "--raw", *asked).rstrip("\n")
    assert text
    for command in ("bench", "plan", "report", "train", "serve"):
        said(programs, "draftwood", command, "--help")
    with serving(programs, target) as client:
        assert client.get("/health").status_code == 200
        body = {"prompt": "Hi", "max_tokens": 12, "temperature": 0}
        answer = client.post("/v1/completions", json=body)
        assert answer.json()["choices"][0]["text"].rstrip("\n") == text
        client.headers.pop("Authorization")
        assert client.post("/v1/completions", json=body).status_code == 401
    assert not list((tmp_path / "venv" / "home").glob("kernels/*/*"))  # nothing was compiled


def test_without_a_compiler_the_pure_wheel_says_how_to_get_one(
    pure: dict[str, Path], target: str, tmp_path: Path
) -> None:
    programs = empty_environment(tmp_path / "venv", [str(pure["draftwood"])])
    command = [str(programs / "draftwood"), "generate", "Hi", "--model", target]
    done = subprocess.run(command, capture_output=True, text=True, env=bare(programs))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "there is no C++ compiler; " in done.stderr
    assert "pip install draftwood-torch" in done.stderr
    assert "layer-skip" not in said(programs, "draftwood", "methods", "--all")
