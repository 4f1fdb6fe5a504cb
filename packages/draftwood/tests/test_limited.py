"""Programs that run apart: what they print is bounded, and nothing that they leave holds us up."""

import resource
import sys
import time

import pytest

from draftwood.limited import PRINTED, Ended, run_limited

MIB = 1 << 20


def ran(source: str, given: bytes = b"", seconds: float = 20.0) -> Ended:
    return run_limited([sys.executable, "-I", "-c", source], given, seconds, 1 << 30)


def test_a_program_reads_what_it_is_given_and_its_last_words_are_kept() -> None:
    source = "import sys\nprint(len(sys.stdin.read()))\nprint('no', file=sys.stderr)\nsys.exit(3)"
    assert ran(source, b"x" * (3 * MIB)) == Ended(3, b"3145728\n", b"no\n")
    found = ran("print('a' * (2 << 20)); print('end')")
    assert len(found.out) == PRINTED
    assert found.out.endswith(b"a\nend\n")


def test_a_program_that_prints_without_end_is_ended_and_takes_no_memory_here() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = ran("while True: print('y' * 100_000)")
    assert found.code
    assert len(found.out) == PRINTED
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024  # KiB


def test_a_process_that_is_left_behind_holds_up_nothing() -> None:
    source = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    time.sleep(6)\n"
        "    os._exit(0)\n"
        "print(1, flush=True)\n"
    )
    since = time.monotonic()
    assert ran(source) == Ended(0, b"1\n", b"")
    assert time.monotonic() - since < 5
    with pytest.raises(TimeoutError, match=r"more than 0\.2 s"):
        ran("import time; time.sleep(6)", seconds=0.2)
