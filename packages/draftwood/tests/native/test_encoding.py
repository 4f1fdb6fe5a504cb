"""Rows of products' inputs are the same bytes whether they are encoded one by one or at once."""

import random
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from draftwood.native.compiler import FLAGS, SOURCES, compiler
from draftwood.native.library import TARGET

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
PROGRAM = Path(__file__).with_name("encoding.cpp")
INPUTS = 64
FOLDER = TemporaryDirectory()  # removed when the process ends


@cache
def program() -> Path:
    path = Path(FOLDER.name) / "encoding"
    command = [compiler(), *FLAGS, TARGET, "-O1", "-w", f"-I{SOURCES}", PROGRAM, "-o", path]
    subprocess.run([str(part) for part in command], check=True)
    return path


def differences(rows: Sequence[Sequence[float]], changed: float = 0.0) -> list[int]:
    """Numbers that differ, by the number of rows."""
    numbers = [changed, *(value for row in rows for value in row)]
    given = " ".join(map(repr, numbers))
    done = subprocess.run([program()], input=given, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def random_rows(scale: float) -> list[list[float]]:
    numbers = random.Random(0)
    return [[numbers.gauss(0, scale * 10**row) for _ in range(INPUTS)] for row in range(8)]


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-30])
def test_blocks_are_their_rows(scale: float) -> None:
    assert differences(random_rows(scale)) == [0] * 8


@pytest.mark.parametrize(
    "odd", [float("nan"), float("inf"), float("-inf"), 1e-38, 1e-44, 0.0, 3e38]
)
def test_odd_numbers_are_encoded_alike(odd: float) -> None:
    rows = random_rows(1.0)
    rows[2][5] = odd
    rows[4] = [odd] * INPUTS
    rows[6] = [0.0] * 31 + [odd] + rows[6][32:]
    assert differences(rows) == [0] * 8


def test_other_values_are_told_apart() -> None:
    assert all(count > 0 for count in differences(random_rows(1.0), changed=0.5))
