"""The number of threads is draftwood's own setting; PyTorch's counts where it is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from draftwood.native import threads

LINUX = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="reads Linux's files")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not imported PyTorch."""
    monkeypatch.delitem(sys.modules, "torch")
    threads.cores_apart.cache_clear()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("told", "expected"), [("3", 3), ("2,4", 2), (" 5 ", 5), ("0", 2), ("", 2), ("many", 2)]
)
def test_the_environment_tells_or_the_cores(
    told: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(threads.VARIABLE, told)
    monkeypatch.setattr(threads, "cores_apart", lambda root: 2)
    assert threads.allowed() == expected


def test_the_number_of_an_imported_pytorch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(threads.VARIABLE, "7")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert threads.allowed() == 4


def test_a_number_is_set_for_a_while_in_both() -> None:
    before, told = torch.get_num_threads(), os.environ.get(threads.VARIABLE)
    with threads.threads_set(None):
        assert threads.allowed() == before
    with threads.threads_set(2):
        assert (threads.allowed(), torch.get_num_threads()) == (2, 2)
        assert os.environ[threads.VARIABLE] == "2"  # which a PyTorch imported later reads
    assert torch.get_num_threads() == before
    assert os.environ.get(threads.VARIABLE) == told
    with pytest.raises(ValueError, match="at least one thread, got 0"):
        threads.set_threads(0)


def test_a_thread_alone_has_one_where_pytorch_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before, native = torch.get_num_threads(), threads.threads()
    torch.set_num_threads(3)
    try:
        with threads.torch_alone():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
        monkeypatch.setattr(threads, "_of_thread", lambda: (int, int))  # as without OpenMP
        with threads.torch_alone():
            assert torch.get_num_threads() == 3
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert threads.threads() == native


@LINUX
def test_two_cpus_of_one_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    for cpu in range(3):  # the last has no such file
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text("0,2\n" if cpu != 1 else "1\n")
    threads.cores_apart.cache_clear()
    assert threads.cores_apart(tmp_path) == 3
    threads.cores_apart.cache_clear()


ALONE = """
import os, sys
from draftwood.native import threads
assert threads.imported_torch() is None
threads.set_threads(1)
threads.survive_forks()
with threads.threads_of_torch_kept():
    threads.work_beside(1)
child = os.fork()
if not child:
    os._exit(0 if threads.threads() == 1 else 7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert "torch" not in sys.modules
import torch
assert torch.get_num_threads() == 1 == threads.allowed()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_nothing_of_it_imports_pytorch_which_takes_the_number_over_later() -> None:
    environment = {name: value for name, value in os.environ.items() if name != threads.VARIABLE}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
