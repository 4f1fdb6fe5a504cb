"""Libraries compiled beforehand, for machines without a C++ compiler.

A wheel of ``make wheel`` holds one for each of a few levels of CPUs; the library takes the best one
that the CPU can run. Only the standard library is imported, as wheels are built where nothing else
is installed.
"""

import hashlib
import os
import platform
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

from draftwood.native.compiler import SOURCES, CompilerError, compile_library, processor

FOLDER = SOURCES / "prebuilt"
# a plain machine may lack these libraries, or have older ones; what of them nothing uses is left
# out, as it asks for a newer glibc
OLDER_GLIBC = SOURCES / "portable" / "older_glibc.cpp"
REPLACED = (
    *("exp", "exp2", "log", "pow", "pthread_create", "pthread_detach", "pthread_mutex_trylock"),
    *("pthread_once", "__pthread_key_create", "__libc_single_threaded", "_dl_find_object"),
)
"""Names whose newest versions are younger than glibc 2.28; older ones stand in ``OLDER_GLIBC``."""
PORTABLE = (
    *("-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL,--gc-sections", "-s"),
    f"-Wl,{','.join(f'--wrap={name}' for name in REPLACED)}",
)


@dataclass(frozen=True)
class CPULevel:
    """CPUs that one prebuilt library is for.

    Attributes:
        name: of its file.
        flags: flags for the compiler.
        needs: what the CPU must be able to do, as /proc/cpuinfo names it.
    """

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]

    @property
    def path(self) -> Path:
        """Path of the library once draftwood is installed from a wheel."""
        return FOLDER / f"{self.name}.so"

    def is_intact(self) -> bool:
        """True if the library has the SHA-256 that is stored beside it."""
        try:
            said = digest_path(self.path).read_text(encoding="utf-8")
            return hashlib.sha256(self.path.read_bytes()).hexdigest() == said.strip()
        except (OSError, ValueError):
            return False


def digest_path(library: Path) -> Path:
    """Path of a prebuilt library's SHA-256."""
    return library.with_suffix(".sha256")


def write_digest(library: Path) -> None:
    """Keep the SHA-256 of a prebuilt library beside it."""
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    digest_path(library).write_text(digest + "\n", encoding="utf-8")


def _levels(*steps: tuple[str, str, str, str]) -> tuple[CPULevel, ...]:
    """Levels from steps: name, the step it builds on, flags and needs beyond that one's."""
    made = dict[str, CPULevel]()
    for name, base, flags, needs in steps:
        before = made.get(base, CPULevel("", (), frozenset()))
        words = (*before.flags, *flags.split())
        made[name] = CPULevel(name, words, before.needs | set(needs.split()))
    return tuple(made.values())


LEVELS: dict[str, tuple[CPULevel, ...]] = {
    "x86_64": _levels(
        ("x86-64-v3", "", "-march=x86-64-v3", "avx2 bmi1 bmi2 f16c fma abm movbe"),
        ("x86-64-v3-vnni", "x86-64-v3", "-mavxvnni", "avx_vnni"),
        (
            "x86-64-v4",
            "x86-64-v3",
            "-march=x86-64-v4",
            "avx512f avx512bw avx512cd avx512dq avx512vl",
        ),
        ("x86-64-v4-vnni", "x86-64-v4", "-mavx512vnni", "avx512_vnni"),
        ("x86-64-v4-bf16", "x86-64-v4-vnni", "-mavx512bf16", "avx512_bf16"),
        (
            "x86-64-v4-amx",
            "x86-64-v4-bf16",
            "-mamx-tile -mamx-int8 -mamx-bf16",
            "amx_tile amx_int8 amx_bf16",
        ),
    ),
    "aarch64": _levels(
        ("armv8.2-dotprod", "", "-march=armv8.2-a+dotprod", "atomics asimdrdm asimddp"),
        ("armv8.2-i8mm", "armv8.2-dotprod", "-march=armv8.2-a+dotprod+i8mm", "i8mm"),
    ),
}
"""By machine, from the least to the best. Of two flags ``-march`` the compiler takes the last."""


def best() -> CPULevel | None:
    """The best level that this CPU can run and the package holds; None where there is none.

    Damaged ones are skipped with a warning.
    """
    if sys.platform != "linux":
        return None
    offered = set(processor().partition(":")[2].split())
    for level in reversed(LEVELS.get(platform.machine(), ())):
        if level.needs <= offered and level.path.is_file():
            if level.is_intact():
                return level
            warnings.warn(f"{level.path} is damaged; install draftwood again", stacklevel=2)
    return None


def target_machine() -> str:
    """Kind of machine that libraries are built for: ``$DRAFTWOOD_MACHINE``, else this one's.

    For another one ``$CXX`` names a compiler that compiles for it.
    """
    return os.environ.get("DRAFTWOOD_MACHINE") or platform.machine()


def build(folder: Path) -> list[Path]:
    """Compile the library for all levels of the ``target_machine``; returns the files.

    The SHA-256 of each lies beside it.

    ``$DRAFTWOOD_PREBUILT`` may name some of them instead, with commas between. Levels that the
    compiler does not know are left out, but for the first.

    Raises:
        CompilerError: where there is no compiler, it fails, or no level is known.
    """
    levels = LEVELS.get(target_machine(), ()) if sys.platform == "linux" else ()
    if not levels:
        raise CompilerError(
            f"there are no levels of CPUs for {target_machine()} on {sys.platform}; install from"
            " source, which compiles for the CPU at hand"
        )
    named = os.environ.get("DRAFTWOOD_PREBUILT", "").split(",")
    levels = [level for level in levels if level.name in named] or levels
    folder.mkdir(parents=True, exist_ok=True)
    made = list[Path]()
    for level in levels:
        try:
            flags = (*PORTABLE, *level.flags)
            compile_library(folder / level.path.name, flags, more=[OLDER_GLIBC])
        except CompilerError:
            if level is levels[0]:
                raise
            print(f"left out {level.name}: the compiler does not know it", file=sys.stderr)
            continue
        write_digest(folder / level.path.name)
        made.append(folder / level.path.name)
    return made


def platform_tag(libraries: list[Path]) -> str:
    """The wheel's tag: the oldest glibc that has all that the libraries ask for (PEP 600)."""
    versions = [
        int(found)
        for path in libraries
        for found in re.findall(rb"GLIBC_2\.(\d+)", path.read_bytes())
    ]
    machine = target_machine()
    return f"manylinux_2_{max(versions)}_{machine}" if versions else f"linux_{machine}"
