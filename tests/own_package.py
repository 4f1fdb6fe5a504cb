"""The package that docs/add-a-method.md describes, and others that go wrong."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "add-a-method.md"


def files() -> dict[str, str]:
    """The page's blocks by file: a Python block names its file in its first line."""
    found = {"pyproject.toml": ""}
    for language, block in re.findall(r"```(toml|python)\n(.*?)```", PAGE.read_text(), flags=re.S):
        name = "pyproject.toml" if language == "toml" else block.partition("\n")[0][2:]
        found[name] = found.get(name, "") + block + "\n\n"
    return found


def write(folder: Path) -> Path:
    """The package's folder."""
    folder.mkdir(parents=True)
    for name, text in files().items():
        (folder / name).write_text(text)
    return folder


def install(folder: Path, site: Path) -> Path:
    """Install a package's folder into one of its own, as pip does."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site))
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return site


def plant(site: Path, package: str, module: str, text: str) -> Path:
    """A package of one module, as if it had been installed; the module's file."""
    described = site / f"{package}-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(f"[draftwood]\n{package} = {module}\n")
    file = site / f"{module.partition(':')[0]}.py"
    file.write_text(text)
    return file
