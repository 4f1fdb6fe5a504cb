"""Threads of a server take memory from few arenas."""

import subprocess
import sys

import pytest

ARENAS = """
import ctypes, threading
from draftwood_serve.arenas import share_free_memory
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
libc.malloc_info.argtypes = (ctypes.c_int, ctypes.c_void_p)
libc.fclose.argtypes = (ctypes.c_void_p,)
{call}
meet = threading.Barrier(9)
def use():
    libc.malloc(1000)
    meet.wait(10)
threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads:
    thread.start()
meet.wait(10)
file = libc.fopen(b"/dev/stdout", b"w")
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="arenas are glibc's")
@pytest.mark.parametrize("call", ["share_free_memory()", ""])
def test_threads_share_arenas(call: str) -> None:
    run = [sys.executable, "-c", ARENAS.format(call=call)]
    told = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60).stdout
    arenas = told.count("<heap nr=")
    assert arenas <= 2 if call else arenas > 2
