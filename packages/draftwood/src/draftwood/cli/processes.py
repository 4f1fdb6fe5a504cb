"""Commands that start themselves again in several processes, under torchrun."""

import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO, NoReturn

import click

from draftwood.optional import backend
from draftwood.storage.ranks import rank

NOISE = re.compile(r"[EWIC]\d{4} \d\d:|\*{5}|\[rank\d+\]|\[W")
"""Beginnings of log lines of torchrun and PyTorch."""
END_SECONDS = 45
"""Time that a server has to drain and to tell its clients, before torchrun kills it."""
STARTED = "DRAFTWOOD_STARTED_IN_PARTS"
"""Variable of the environment of processes that a command has started."""
FAILURE = re.compile(r"E\d{4} \d\d:|Traceback \(most recent")
"""Beginnings of lines after which torchrun alone prints, apart from errors in one line."""


def leads(tp: int) -> bool:
    """True if this process decides and prints: the only one, whatever others are around it, or the
    first of several that hold a model.
    """
    return tp == 1 or not rank()


def run_over(tp: int, model: str, dtype: str | None, device: str | None) -> None:
    """Run this command again in so many processes and leave with its exit code.

    Nothing happens for one process, and in those that torchrun started.

    Raises:
        ValueError: for a model that cannot be split so.
        OSError: where a process died.
        ImportError: where PyTorch is missing.
    """
    if tp == 1:
        return
    if rank() is not None:
        if STARTED in os.environ and sys.platform != "win32":
            _end_with_the_command()
        return
    backend("--tp").require_split(model, tp, dtype, device)
    arguments = click.get_current_context().find_root().obj
    assert isinstance(arguments, list)
    click.get_current_context().exit(_launch(tp, arguments))


def serve_the_first(tp: int, model: str, dtype: str | None, device: str | None) -> NoReturn:
    """Hold a part of the model until the first process ends."""
    backend("--tp").load_parallel(model, tp, dtype, device)
    raise SystemExit(0)


def _launch(tp: int, arguments: list[str]) -> int:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={tp}", "-m", "draftwood.cli.main", *arguments]
    share = max(1, (os.cpu_count() or 1) // tp)
    own = {"OMP_NUM_THREADS": str(share), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(END_SECONDS)}
    started = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**own, **os.environ, STARTED: "1"},
        start_new_session=True,  # the terminal's signals come through this process alone
    )
    assert started.stderr is not None
    told: list[str] = []
    reader = threading.Thread(target=_pass_on, args=(started.stderr, told), daemon=True)
    reader.start()
    with _signals_go_to(started) as heard:
        code = started.wait()
    reader.join(timeout=5)
    if heard:
        return 0 if heard[0] == signal.SIGTERM else 128 + heard[0]
    if code and not any(line.startswith("draftwood: error") for line in told):
        raise OSError(
            f"a process of --tp {tp} ended early, with exit code {code}; start again, and where"
            " memory ran out with more processes or a smaller --dtype"
        )
    return 2 if code else 0


def _end_with_the_command() -> None:
    """End this process once nobody reads its errors: the command has ended, even by SIGKILL."""
    watched = select.poll()
    watched.register(2, 0)  # an error alone, such as a reader that is gone

    def watch() -> None:
        watched.poll()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _signals_go_to(started: "subprocess.Popen[str]") -> Iterator[list[int]]:
    """Forward what ends a command to torchrun, which forwards it to all; yields what came."""
    heard: list[int] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        started.send_signal(number)

    ending = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        ending.append(signal.SIGHUP)
    before = {each: signal.signal(each, hand_on) for each in ending}
    try:
        yield heard
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _pass_on(stream: IO[str], told: list[str]) -> None:
    """Print what the first process says, without torchrun's own lines after an error."""
    quiet = False
    for line in stream:
        quiet = quiet or FAILURE.match(line) is not None
        if line.startswith("draftwood: ") or not (quiet or NOISE.match(line)):
            told.append(line)
            click.echo(line, nl=False, err=True)
