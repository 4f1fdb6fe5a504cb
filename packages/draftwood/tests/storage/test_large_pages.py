"""Large tensors ask for large pages, and small ones are left alone."""

import mmap
import sys
import weakref
from pathlib import Path

import pytest
import torch

from draftwood.arrays import ALIGNMENT
from draftwood.native.matrix import SLAB, LargePages
from draftwood.storage.memory import LARGE_PAGE, prefer_large_pages

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's files")


def flags_at(address: int) -> list[str]:
    """Flags of the memory around an address, as the system lists them."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in (span := line.split()[0]) and not span.endswith(":"):
            first, last = (int(end, 16) for end in span.split("-"))
            inside = first <= address < last
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []


@LINUX
def test_large_tensors_ask_for_large_pages() -> None:
    # memory that nobody had before, as flags outlive who asked for them
    large = torch.frombuffer(mmap.mmap(-1, 16 * LARGE_PAGE), dtype=torch.uint8)
    small = torch.empty(64, dtype=torch.uint8)
    middle = large.data_ptr() + 8 * LARGE_PAGE
    assert "hg" not in flags_at(middle)
    before = flags_at(small.data_ptr())  # its neighbours on the heap may have asked already
    prefer_large_pages(small.data_ptr(), small.nbytes)
    assert flags_at(small.data_ptr()) == before
    prefer_large_pages(large.data_ptr(), large.nbytes)
    assert "hg" in flags_at(middle)
    large.zero_()
    assert not large.any()


@LINUX
def test_parts_lie_in_large_pages() -> None:
    pages = LargePages()
    parts = [pages.take(size) for size in (100, SLAB - 200, 0, 100, 2 * SLAB, 5)]
    assert [len(part) for part in parts] == [100, SLAB - 200, 0, 100, 2 * SLAB, 5]
    for number, part in enumerate(parts):
        assert part.ctypes.data % ALIGNMENT == 0 or not len(part)
        part[:] = number
    for number, part in enumerate(parts):
        assert (part == number).all()
        assert not len(part) or "hg" in flags_at(part.ctypes.data)


def test_a_slab_goes_with_its_last_part() -> None:
    pages = LargePages()
    kept = pages.take(100)
    slab = weakref.ref(kept.base)
    pages.take(SLAB)
    assert slab() is not None
    del kept
    assert slab() is None


def test_no_memory_is_no_obstacle() -> None:
    prefer_large_pages(0, 0)
