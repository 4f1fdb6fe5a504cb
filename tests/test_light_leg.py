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

LEAST_OF_PROOF = {"laws": 230, "sources": 25}
"""Tests that take long and run; the other legs have none of their own."""

NEED_PYTORCH = (
    "a part of draftwood-methods, which needs PyTorch",  # layers left out, exits, Jacobi, ...
    "parts of draftwood-methods, which needs PyTorch",
    "a head of random weights needs PyTorch",  # they are drawn by its initialisers
    "this road needs PyTorch",  # models of draftwood-torch
    "the model is one of PyTorch",  # layers that add nothing, written into its modules
    "this part of draftwood needs PyTorch",
    "it is hidden",  # files of tests that compare with PyTorch, or import satellites of it
)
"""Reasons to leave a law out here: its subject is made of PyTorch. Nothing else may skip."""


def run(
    *words: str, folder: Path = ROOT, marker: str = "not proof"
) -> "subprocess.CompletedProcess[str]":
    """Pytest in an interpreter of its own without PyTorch."""
    path = os.pathsep.join([PYTHONPATH, str(ROOT / "tests")])
    options = ("-q", "-rfEs", "-p", "no:cacheprovider", "-p", "light_leg", "-m", marker)
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


def require_passed(done: "subprocess.CompletedProcess[str]", least: int) -> None:
    """Assert that so many tests passed, and that what was skipped needs PyTorch."""
    assert done.returncode == 0, done.stdout[-3000:]
    assert counted(done.stdout, "passed") >= least, done.stdout[-3000:]
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED [")]
    assert bool(skipped) == bool(counted(done.stdout, "skipped"))
    others = [line for line in skipped if not any(reason in line for reason in NEED_PYTORCH)]
    assert not others, others


@pytest.mark.parametrize(
    "leg", [*list(LEGS)[:3], pytest.param("verifiers", marks=pytest.mark.proof)]
)
def test_laws_hold_without_pytorch(leg: str) -> None:
    require_passed(run(*LEGS[leg]), LEAST[leg])


@pytest.mark.proof
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("leg", LEAST_OF_PROOF)
def test_laws_that_take_long_hold_without_pytorch(leg: str) -> None:
    require_passed(run(*LEGS[leg], marker="proof"), LEAST_OF_PROOF[leg])


def test_what_skips_for_another_reason_is_told(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    text = "import pytest\ndef test_it(): pytest.skip('not today')\ndef test_other(): ...\n"
    (tmp_path / "tests" / "test_skipping.py").write_text(text)
    done = run("tests", folder=tmp_path)
    with pytest.raises(AssertionError, match="not today"):
        require_passed(done, 1)


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
