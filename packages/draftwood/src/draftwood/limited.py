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
from typing import Any


@dataclass(frozen=True)
class Ended:
    """A program that has ended.

    Attributes:
        code: exit code.
        out, err: what it printed.
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

    pipe: Any = subprocess.PIPE
    running = subprocess.Popen(
        command,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        cwd=folder,
        preexec_fn=limit,
        start_new_session=True,
    )
    with running:
        try:
            out, err = running.communicate(given, seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"it took more than {seconds:g} s") from None
        finally:
            with suppress(ProcessLookupError):  # what it started ends with it
                os.killpg(running.pid, signal.SIGKILL)
    return Ended(running.returncode, out, err)
