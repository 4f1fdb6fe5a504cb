"""Programs of others that run apart, within limits of time and memory."""

import math
import os
import resource
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

PRINTED = 1 << 20
"""Bytes that are read of what a program prints, the last ones."""
LARGEST_FILE = 64 << 20
"""Bytes that a program may write into a file, and print."""


@dataclass(frozen=True)
class Ended:
    """A program that has ended.

    Attributes:
        code: exit code.
        out, err: the end of what it printed.
    """

    code: int
    out: bytes
    err: bytes


def run_limited(
    command: Sequence[str],
    given: bytes,
    seconds: float,
    memory: int,
    folder: Path | None = None,
) -> Ended:
    """Run a program without a shell, in a group of its own that ends with it.

    It reads and prints files, which no memory and no process that it left behind can hold up.

    Args:
        command: program and arguments.
        given: its standard input.
        seconds: that it may take, in all and on the CPU.
        memory: bytes that it may take.
        folder: it runs in; None for this one.

    Raises:
        OSError, subprocess.SubprocessError: where it cannot be run.
        TimeoutError: where it takes longer.
    """

    def limit() -> None:
        whole = math.ceil(seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 1))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))

    with TemporaryFile() as asked, TemporaryFile() as out, TemporaryFile() as err:
        asked.write(given)
        asked.seek(0)
        running = subprocess.Popen(
            command,
            stdin=asked,
            stdout=out,
            stderr=err,
            cwd=folder,
            preexec_fn=limit,
            start_new_session=True,
        )
        try:
            running.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"it took more than {seconds:g} s") from None
        finally:
            with suppress(ProcessLookupError):  # what it started ends with it
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        return Ended(running.returncode, _last(out), _last(err))


def _last(file: IO[bytes]) -> bytes:
    """Read the end of what was printed."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - PRINTED))
    return file.read()
