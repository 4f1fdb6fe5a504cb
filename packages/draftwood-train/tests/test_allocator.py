"""Freed memory stays with the process while it trains."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from draftwood_train.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def fill():
    torch.ones(25_000_000).sum()
for _ in range(10):
    fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(way: str) -> int:
    """Pages that a process asks the kernel for while it fills 100 MB ten times."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, way], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc alone")
def test_large_blocks_are_used_again() -> None:
    assert faults("kept") < faults("as usual") / 10
