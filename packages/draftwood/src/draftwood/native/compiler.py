"""Compile the library with the system's C++ compiler.

Only the standard library is imported, as wheels are built where nothing else is installed.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
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
)
# Copy vectors in as few pieces as the CPU can. GCC tunes for 16 bytes where vectors have 32, and so
# products took twice as long; it has these since version 12, on x86-64.
WHOLE_COPIES = ("-mmove-max=512", "-mstore-max=512")
# parts that take longest, which begin first; the others follow by name
LONGEST = ("drafting.cpp", "decoder.cpp", "products_of_bytes.cpp")
POLL_SECONDS = 0.02


CURES = {
    "darwin": "run: xcode-select --install",
    "win32": "run draftwood in WSL (wsl --install), where its wheel for Linux needs none",
}
CURE = "install one: apt install g++, dnf install gcc-c++ or apk add g++"
"""Cure on other systems than those of ``CURES``."""


class CompilerError(ValueError):
    """The library cannot be compiled here; the message says why."""


def source_files() -> list[Path]:
    """All files that the library is made from."""
    patterns = ("*.cpp", "*.h", "sources/*.cpp", "portable/*.cpp")
    return sorted(path for pattern in patterns for path in SOURCES.glob(pattern))


def compiler() -> str | None:
    """The C++ compiler: ``$CXX``, else the usual names."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    return next((path for path in map(shutil.which, names) if path), None)


def is_unwanted() -> bool:
    """True if ``CXX=none`` asks for no library at all."""
    return os.environ.get("CXX") == "none"


def no_compiler() -> str:
    """Say in a clause that there is no compiler, and how one gets it on this system."""
    if is_unwanted():
        return "CXX=none does without the C++ library; unset it"
    if os.environ.get("CXX"):
        return f"$CXX names {os.environ['CXX']}, and there is no such program; correct it"
    return f"there is no C++ compiler; {CURES.get(sys.platform, CURE)}"


def own_flags() -> list[str]:
    """Compiler flags that the user gives in ``$CXXFLAGS``."""
    return shlex.split(os.environ.get("CXXFLAGS", ""))


def parts() -> list[Path]:
    """The files that are compiled by themselves, in the order in which they begin."""
    found = sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("sources/*.cpp")])
    return sorted(found, key=lambda path: path.name not in LONGEST)


def compile_library(
    destination: Path,
    flags: Sequence[str],
    tell: Callable[[int, int], None] | None = None,
    more: Sequence[Path] = (),
) -> None:
    """Compile the parts of the library, one on each core at a time, and link them into one file.

    If the process is stopped meanwhile, the file stays as it was.

    Args:
        destination: the file.
        flags: besides ``FLAGS``, such as the CPU to compile for; ``own_flags`` come last.
        tell: called with the number of steps done, and of all.
        more: parts that not every library has.

    Raises:
        CompilerError: where there is no compiler, it fails, or draftwood lies in an archive.
    """
    if not parts():
        raise CompilerError(
            f"the C++ sources in {SOURCES} are no files; install draftwood unpacked, as pip does"
        )
    path = compiler()
    if path is None:
        raise CompilerError(no_compiler())
    command = [path, *FLAGS, *_known(path, WHOLE_COPIES), *flags, *own_flags()]
    # a compiler that outlives this process writes where nobody else does
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".compiling-") as name:
        made = {part: Path(name, f"{part.stem}.o") for part in [*parts(), *more]}
        linked = Path(name, destination.name)
        run = _Compilers(Path(name), len(made) + 1, tell)
        run.all([[*command, "-c", str(part), "-o", str(to)] for part, to in made.items()])
        run.all([[*command, "-shared", *map(str, made.values()), "-o", str(linked)]])
        os.replace(linked, destination)


def _known(path: str, flags: Sequence[str]) -> Sequence[str]:
    """These flags if the compiler knows them all, else none."""
    ask = [path, *flags, "-fsyntax-only", "-x", "c++", os.devnull]
    return flags if subprocess.run(ask, capture_output=True, check=False).returncode == 0 else ()


class _Compilers:
    """Compilers at work side by side.

    Args:
        folder: for their output.
        steps: how many there will be, for ``tell``.
        tell: see ``compile_library``.
    """

    def __init__(self, folder: Path, steps: int, tell: Callable[[int, int], None] | None) -> None:
        self.folder, self.steps, self.tell = folder, steps, tell
        self.done = 0

    def all(self, commands: Sequence[list[str]]) -> None:
        """Run commands, as many at a time as there are cores. Where one fails, the others end."""
        waiting, at_work = list(commands), dict[Path, subprocess.Popen[bytes]]()
        try:
            while waiting or at_work:
                while waiting and len(at_work) < cpus():
                    log = self.folder / f"{self.done + len(at_work)}-{len(waiting)}.log"
                    at_work[log] = _start(waiting.pop(0), log)
                for log in [log for log, each in at_work.items() if each.poll() is not None]:
                    self._end(at_work.pop(log), log)
                time.sleep(POLL_SECONDS)
        finally:
            for each in at_work.values():
                each.kill()
                each.wait()

    def _end(self, compiler: "subprocess.Popen[bytes]", log: Path) -> None:
        if compiler.returncode:
            raise CompilerError(_failure(log.read_text(encoding="utf-8", errors="replace")))
        self.done += 1
        if self.tell is not None:
            self.tell(self.done, self.steps)


def _start(command: list[str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("wb") as said:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)


def _failure(said: str) -> str:
    """Reason of a failure, from the compiler's output."""
    first = next((line for line in said.splitlines() if "error" in line), said[:200])
    return (
        f"{Path(compiler() or 'c++').name} could not compile the decoder ({first.strip()}); try"
        " another with $CXX"
    )


def cpus() -> int:
    """CPUs that the system lets this process run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """Line of /proc/cpuinfo with the CPU's features, which ``-march=native`` goes by."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
