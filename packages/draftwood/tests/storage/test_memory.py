"""Available memory: the least that the machine and every limit leave."""

import ctypes
import errno
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from draftwood.loading import gguf_blocks, packed
from draftwood.loading.kept_matrices import MATRICES
from draftwood.loading.llama2c import read_llama2c
from draftwood.storage import memory
from draftwood.storage.memory import available_memory, give_back_memory, require_memory
from draftwood.storage.safetensors import map_arrays, write_arrays

MACHINE = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    5000 kB\n"}
STAT = "active_file 100\ninactive_file 20\nanon 7\n"
GROUP = {"memory.max": "1000\n", "memory.current": "700\n", "memory.stat": STAT}
OLD_STAT = "active_file 1\ntotal_active_file 30\ntotal_inactive_file 3\n"
SIZE = {"proc/self/status": "VmPeak:\t    9 kB\nVmSize:\t    2 kB\n"}
OLD = {"memory.limit_in_bytes": "800", "memory.usage_in_bytes": "600", "memory.stat": OLD_STAT}


def machine(root: Path, *parts: Mapping[str, str]) -> Path:
    for name, text in (item for part in parts for item in part.items()):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def within(folder: str, files: Mapping[str, str]) -> dict[str, str]:
    return {f"sys/fs/cgroup/{folder}{name}": text for name, text in files.items()}


def limited(most: str) -> dict[str, str]:
    return {
        "proc/self/limits": f"Max data size  1  1  bytes\nMax address space   {most}   9  bytes\n"
    }


def member(line: str) -> dict[str, str]:
    return {"proc/self/cgroup": f"3:cpu:/x\n{line}\n"}


@pytest.mark.parametrize(
    ("parts", "left"),
    [
        ([], None),
        ([MACHINE], 5000 * 1024),
        ([{"proc/meminfo": "MemTotal: 12 kB\n"}], None),
        ([MACHINE, member("0::/a/b"), within("a/b/", GROUP)], 420),
        ([member("0::/a/b"), within("a/", GROUP)], 420),  # a group that holds it
        ([member("0::/"), within("", GROUP)], 420),
        ([MACHINE, member("0::/"), within("", GROUP | {"memory.max": "max\n"})], 5000 * 1024),
        ([member("0::/"), within("", GROUP | {"memory.current": "9999"})], 0),
        ([member("4:memory:/p"), within("memory/p/", OLD)], 233),
        ([member("4:memory:/gone"), within("memory/", OLD)], 233),
        ([MACHINE, SIZE, limited("2500")], 452),
        ([MACHINE, SIZE, limited("1000")], 0),
        ([MACHINE, SIZE, limited("unlimited")], 5000 * 1024),
        ([MACHINE, limited("2500")], 5000 * 1024),
    ],
)
def test_the_least_that_is_left_counts(
    tmp_path: Path, parts: list[Mapping[str, str]], left: int | None
) -> None:
    assert available_memory(machine(tmp_path, *parts)) == left


def test_this_machine_has_some() -> None:
    left = available_memory()
    assert left is None or 10**7 < left < 10**14


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_limit_of_addresses_is_that_of_the_process() -> None:
    code = """
import resource
from draftwood.storage.memory import _text, ROOT, available_memory
pages = int(_text(ROOT / "proc/self/statm").split()[0])
most = pages * resource.getpagesize() + 50_000_000
resource.setrlimit(resource.RLIMIT_AS, (most, most))
print(available_memory())
"""
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 20_000_000 < int(told.stdout) <= 50_000_000


def as_llama2c(path: Path) -> object:
    return read_llama2c(path)


def as_gguf(path: Path) -> object:
    return gguf_blocks._mapped(path)


def as_packed(path: Path) -> object:
    return packed._mapped(path.parent)


@pytest.mark.parametrize("read", [map_arrays, as_llama2c, as_gguf, as_packed])
def test_too_little_memory_to_map_a_file_is_no_fault_of_its_disk(
    read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_arrays(path := tmp_path / MATRICES, {"a": np.zeros(9, np.float32)})

    def refuse(*args: object, **more: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(np, "memmap", refuse)
    with pytest.raises(MemoryError, match=rf"no memory to map {path}; .*raise the memory limit"):
        read(path)


def test_the_message_has_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 2 * 10**9)
    require_memory(19 * 10**8, "m.gguf")
    with pytest.raises(MemoryError, match=r"m\.gguf needs 21\.00 GB .* 2\.00 GB are available; "):
        require_memory(20 * 10**9, "m.gguf")
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    require_memory(20 * 10**12, "m.gguf")


def test_a_dropped_model_that_waits_for_a_collection_counts_as_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Dropped:
        def __init__(self) -> None:
            self.own = self

    dropped = weakref.ref(Dropped())
    monkeypatch.setattr(memory, "available_memory", lambda: 10**9 if dropped() else 10**10)
    gc.disable()
    try:
        require_memory(5 * 10**9, "m.gguf")
    finally:
        gc.enable()
    assert dropped() is None


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim")),
    reason="needs glibc",
)
def test_what_was_freed_goes_back_to_the_system() -> None:
    library, size = ctypes.CDLL(None), ctypes.c_size_t(60_000)
    library.malloc.restype = ctypes.c_void_p
    blocks = [library.malloc(size) for _ in range(1000)]
    for block in blocks:
        ctypes.memset(block, 1, 60_000)
    for block in blocks[:-1]:  # the last one keeps the others from the end, which goes by itself
        library.free(ctypes.c_void_p(block))
    held = resident()
    give_back_memory()
    assert held - resident() > 40_000_000
    library.free(ctypes.c_void_p(blocks[-1]))
