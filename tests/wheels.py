"""Wheels and source distributions of packages, made from copies of their sources."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from checkout import SOURCES
from draftwood.native import prebuilt
from draftwood.native.compiler import compiler, processor

PIP = [sys.executable, "-m", "pip"]
BUILT = ("build", "*.egg-info", "__pycache__", "tests", "benchmarks")
"""Folders of a package that no distribution is made from."""
SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def best_level() -> str:
    """The best level of CPUs that this one is of; skips where no libraries are built."""
    if sys.platform != "linux" or compiler() is None:
        pytest.skip("wheels with libraries are made on Linux, with a compiler")
    offered = set(processor().partition(":")[2].split())
    able = [each for each in prebuilt.LEVELS.get(platform.machine(), ()) if each.needs <= offered]
    return able[-1].name if able else pytest.skip("this CPU is of no level")


def copied(package: str, folder: Path) -> Path:
    """A copy of a package's sources, without what was built or compiled beside them."""
    ignored = shutil.ignore_patterns(*BUILT)
    return shutil.copytree(SOURCES[package].parent, folder / package, ignore=ignored)


def built_wheel(package: str, folder: Path, **settings: str) -> Path:
    """A wheel of a copy of a package, in ``folder``, made under these variables."""
    return wheel_of(copied(package, folder / "copies"), folder, **settings)


def wheel_of(source: Path, folder: Path, **settings: str) -> Path:
    """A wheel of sources or of a source distribution."""
    before = set(folder.glob("*.whl"))
    build = [*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    told = {name: value for name, value in os.environ.items() if name != "DRAFTWOOD_PREBUILT"}
    subprocess.run([*build, str(source)], check=True, env={**told, **settings})
    (made,) = set(folder.glob("*.whl")) - before
    return made


def sdist_of(source: Path, folder: Path) -> Path:
    """A source distribution of sources."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", SDIST, str(folder)]
    subprocess.run(command, check=True, cwd=source, capture_output=True)
    (made,) = folder.glob(f"{source.name.replace('-', '_')}-*.tar.gz")
    return made
