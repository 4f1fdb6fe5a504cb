"""The folders of this checkout, for tests of any package."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {path.name: path / "src" for path in sorted((ROOT / "packages").iterdir())}
"""Source folder of each package."""
PYTHONPATH = os.pathsep.join(map(str, SOURCES.values()))
BENCH = ROOT / "packages" / "draftwood-bench"
