"""Commands that start themselves again in several processes, under torchrun."""

import os
import re
import subprocess
import sys
import threading
from typing import IO, NoReturn

import click

from draftwood.storage.ranks import rank

NOISE = re.compile(r"[EWIC]\d{4} \d\d:|\*{5}|\[rank\d+\]|\[W")
"""How lines of torchrun's own begin, and of PyTorch's."""
FAILURE = re.compile(r"E\d{4} \d\d:|Traceback \(most recent")
"""After these torchrun alone speaks, apart from errors in one line."""


def leads() -> bool:
    """Whether this process decides and prints: the only one, or torchrun's first."""
    return not rank()


def run_over(tp: int, model: str, dtype: str | None) -> None:
    """Run this command again in so many processes and leave with its exit code.

    Nothing happens for one process, and in those that torchrun started.

    Raises:
        ValueError: for a model that cannot be split so.
        OSError: where a process died.
    """
    if tp == 1 or rank() is not None:
        return
    from draftwood.loading.parallel import require_split

    require_split(model, tp, dtype)
    arguments = click.get_current_context().find_root().obj
    assert isinstance(arguments, list)
    click.get_current_context().exit(_launch(tp, arguments))


def serve_the_first(tp: int, model: str, dtype: str | None, device: str | None) -> NoReturn:
    """Hold a part of the model until the first process ends."""
    from draftwood.loading.parallel import load_parallel

    load_parallel(model, tp, dtype, device)
    raise SystemExit(0)


def _launch(tp: int, arguments: list[str]) -> int:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={tp}", "-m", "draftwood.cli.main", *arguments]
    share = max(1, (os.cpu_count() or 1) // tp)
    environment = {"OMP_NUM_THREADS": str(share), **os.environ}
    started = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, errors="replace", env=environment
    )
    assert started.stderr is not None
    told: list[str] = []
    reader = threading.Thread(target=_pass_on, args=(started.stderr, told), daemon=True)
    reader.start()
    try:
        code = started.wait()
    except KeyboardInterrupt:  # torchrun has heard it too
        started.wait()
        raise
    finally:
        if started.poll() is None:
            started.terminate()
            started.wait()
    reader.join(timeout=5)
    if code and not any(line.startswith("draftwood: error") for line in told):
        raise OSError(
            f"a process of --tp {tp} ended early, with exit code {code}; start again, and where"
            " memory ran out with more processes or a smaller --dtype"
        )
    return 2 if code else 0


def _pass_on(stream: IO[str], told: list[str]) -> None:
    """Print what the first process says, without torchrun's own lines after an error."""
    quiet = False
    for line in stream:
        quiet = quiet or FAILURE.match(line) is not None
        if line.startswith("draftwood: ") or not (quiet or NOISE.match(line)):
            told.append(line)
            click.echo(line, nl=False, err=True)
