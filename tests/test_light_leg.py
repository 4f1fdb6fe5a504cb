"""Laws hold where PyTorch, Transformers and what needs them cannot be imported.

The tests of laws, of verifiers, sources and whole steps run once more in an interpreter in which
these packages are refused: to install an environment without them takes longer than the tests.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import light_leg
from checkout import PYTHONPATH, ROOT
from draftwood.native import library

pytestmark = [
    pytest.mark.skipif(not library.available(), reason="there is no C++ compiler"),
    pytest.mark.timeout(280),
]
CORE = "packages/draftwood/tests"
LEGS = {
    "laws": [
        f"tests/test_{kind}laws.py" for kind in ("", "enumerated_", "sampled_", "constrained_")
    ],
    "steps": [
        f"{CORE}/engine/test_{kind}.py" for kind in ("drawn_steps", "steps", "steps_in_a_row")
    ],
    "sources": [f"{CORE}/sources"],
    "verifiers": [f"{CORE}/verifiers"],
}
LEAST = {"laws": 110, "steps": 90, "sources": 200, "verifiers": 200}
"""Tests that run and do not skip; they may only become more."""


def run(*words: str, folder: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    """Pytest in an interpreter of its own without PyTorch."""
    path = os.pathsep.join([PYTHONPATH, str(ROOT / "tests")])
    options = ("-q", "-p", "no:cacheprovider", "-p", "light_leg", "-m", "not proof")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def counted(output: str, what: str) -> int:
    found = re.search(rf"(\d+) {what}", output.splitlines()[-1])
    return int(found[1]) if found else 0


@pytest.mark.parametrize(
    "leg", [*list(LEGS)[:3], pytest.param("verifiers", marks=pytest.mark.proof)]
)
def test_laws_hold_without_pytorch(leg: str) -> None:
    done = run(*LEGS[leg])
    assert done.returncode == 0, done.stdout[-3000:]
    assert counted(done.stdout, "passed") >= LEAST[leg], done.stdout[-3000:]


PLANTED = """
from draftwood.optional import backend
def test_that_asks():
    import torch
def test_of_the_library():
    backend("a law")
def test_of_nothing():
    pass
"""


def test_the_library_may_not_ask_for_pytorch_and_tests_may(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_planted.py").write_text(PLANTED)
    (tmp_path / "tests" / "test_of_torch.py").write_text("import torch\ndef test_it(): ...\n")
    done = run("tests", folder=tmp_path)
    assert done.returncode == 1
    assert [counted(done.stdout, what) for what in ("failed", "passed", "skipped")] == [1, 1, 2]
    assert "FAILED tests/test_planted.py::test_of_the_library" in done.stdout


def test_what_is_hidden_is_what_needs_pytorch() -> None:
    needing = {"torch", "transformers", "draftwood_torch"}
    for path in (ROOT / "packages").iterdir():
        project, _, _ = (path / "pyproject.toml").read_text().partition("[project.optional")
        needing |= {path.name.replace("-", "_")} if '"draftwood-torch==' in project else set()
    assert {*light_leg.HIDDEN} == needing
