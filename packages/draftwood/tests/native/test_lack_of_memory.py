"""Passes without memory for what they hold: an error in Python, and the next pass is as ever."""

import subprocess
import sys
from pathlib import Path

import pytest

from draftwood.native import library
from draftwood.native.compiler import FLAGS, SOURCES, compiler

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory")
PROGRAM = """
import resource, sys
import numpy as np
import torch
from draftwood.models.native import NativeModel, model
from draftwood.testing import tiny_llama

torch.set_num_threads(1)
model.threads = lambda: int(sys.argv[1])
native = NativeModel(tiny_llama(0, layers=1, dim=256, context=2048))
tokens = [1, 2, 3] * 333
with_room = native.start()  # of the cache, so that the pass alone lacks memory
for first in range(0, 999, 100):
    exact = np.asarray(with_room.extend(tokens[first : first + 100]).logits)[-1]
with_room.close()
session = native.start()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
_, most = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + 4 * 2**20, most))
try:
    session.extend(tokens)
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
print(np.array_equal(np.asarray(session.extend(tokens).logits)[-1], exact))
"""


@LINUX
@pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_pass_without_memory_is_an_error_with_the_cure(threads: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, threads], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said, is_as_ever = done.stdout.splitlines()
    assert said.startswith("there is no memory for what the library computes with; shorten the")
    assert is_as_ever == "True"


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_a_task_without_memory_ends_its_job_alone(tmp_path: Path) -> None:
    path = tmp_path / "program"
    source = Path(__file__).with_name("lack_of_memory.cpp")
    command = [compiler(), *FLAGS, "-O1", "-w", f"-I{SOURCES}", source, "-o", path]
    subprocess.run([str(part) for part in command], check=True)
    said = subprocess.run([path], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.splitlines() == ["0 40 40", "1 40 0", "0 40 40"]
