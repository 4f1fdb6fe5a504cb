"""Time from nothing to a first text: an environment, the wheel, the built-in model.

    make bench-install
    python -m benchmarks.installing --dist ../../dist --most 40

The core's wheel of this machine is installed into a new environment beside nothing of draftwood,
with a home of its own and no compiler on the path. What pip has kept of other packages is used, as
``--no-cache`` forbids.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PROMPT = "The capital of Australia is"


def wheel_in(folder: Path) -> Path:
    """The core's newest wheel of this machine. Raises FileNotFoundError without one."""
    found = folder.glob(f"draftwood-*-py3-none-*_{os.uname().machine}.whl")
    newest = max(found, key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        raise FileNotFoundError(f"there is no wheel of the core in {folder}; run: make wheel")
    return newest


def steps(wheel: Path, folder: Path, pip_options: Sequence[str]) -> dict[str, list[str]]:
    """Commands from nothing to the first text, by what they do."""
    python = str(folder / "bin" / "python")
    return {
        "environment": [sys.executable, "-m", "venv", str(folder)],
        "install": [python, "-m", "pip", "install", "--quiet", *pip_options, str(wheel)],
        "first text": [
            *(str(folder / "bin" / "draftwood"), "generate", PROMPT, "--max-new-tokens", "8"),
        ],
    }


def environment_of(folder: Path) -> dict[str, str]:
    """Variables of the commands: a home of their own, and no compiler."""
    kept = {name: each for name, each in os.environ.items() if name not in ("PYTHONPATH", "CXX")}
    return {**kept, "DRAFTWOOD_HOME": str(folder / "home"), "PATH": str(folder / "bin")}


def timed(commands: Mapping[str, Sequence[str]], settings: Mapping[str, str]) -> dict[str, float]:
    """Seconds of each command, which must succeed."""
    found = dict[str, float]()
    for name, command in commands.items():
        since = time.perf_counter()
        subprocess.run(command, env=settings, check=True)
        found[name] = time.perf_counter() - since
    return found


def size_of(folder: Path) -> float:
    """Megabytes of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Time from nothing to a first text.")
    parser.add_argument("--dist", type=Path, default=Path("../../dist"), help="with the wheels")
    parser.add_argument("--most", type=float, default=40.0, help="seconds that it may take")
    parser.add_argument("--no-cache", action="store_true", help="download everything")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="draftwood-install-"))
    try:
        options = ["--no-cache-dir"] if asked.no_cache else []
        commands = steps(wheel_in(asked.dist), folder / "venv", options)
        found = timed(commands, environment_of(folder / "venv"))
        packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
        told = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found.items())
        print(f"{sum(found.values()):.1f} s: {told}; {size_of(packages):.0f} MB installed")
    finally:
        shutil.rmtree(folder)
    if sum(found.values()) > asked.most:
        raise SystemExit(f"that is more than {asked.most:.0f} s")


if __name__ == "__main__":
    main()
