"""The C++ compiler, and what it makes the library from.

Only the standard library is imported, as wheels are built where nothing else is installed.
"""

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).parent
LIBRARY = "decoder.so"
FLAGS = (
    "-std=c++17",
    "-O3",
    "-pthread",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fPIC",
    "-shared",
)


class CompilerError(ValueError):
    """The library cannot be compiled here; the message says why."""


def source_files() -> list[Path]:
    """All files that the library is made from."""
    patterns = ("*.cpp", "*.h", "sources/*.h")
    return sorted(path for pattern in patterns for path in SOURCES.glob(pattern))


def compiler() -> str | None:
    """The C++ compiler: ``$CXX``, else the usual names."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    return next((path for path in map(shutil.which, names) if path), None)


def own_flags() -> list[str]:
    """What the user wants the compiler to be told: ``$CXXFLAGS``."""
    return shlex.split(os.environ.get("CXXFLAGS", ""))


def compile_library(destination: Path, flags: Sequence[str]) -> None:
    """Compile all sources into one file.

    Args:
        destination: the file.
        flags: besides ``FLAGS``, such as the CPU to compile for; ``own_flags`` come last.

    Raises:
        CompilerError: where there is no compiler, or it fails.
    """
    path = compiler()
    if path is None:
        raise CompilerError("there is no C++ compiler; install one (for instance: apt install g++)")
    sources = map(str, sorted(SOURCES.glob("*.cpp")))
    command = [path, *FLAGS, *flags, *own_flags(), *sources, "-o", str(destination)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        first = next(
            (line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200]
        )
        raise CompilerError(
            f"{Path(path).name} could not compile the decoder ({first.strip()}); try another with"
            " $CXX"
        )


def processor() -> str:
    """The line of /proc/cpuinfo that lists what the CPU can do; ``-march=native`` goes by that."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
