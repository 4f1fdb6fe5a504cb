"""Show the progress of long work to the user.

One spinner or bar on a terminal, and nothing of other libraries' own bars.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(message: str) -> Iterator[None]:
    """Show a spinner with `message` on stderr while the body runs.

    Nothing is shown when stderr is not a terminal.
    """
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    # The stream is fixed here, so that the spinner survives the body redirecting stderr to silence
    # a library.
    with Console(file=sys.stderr).status(message):
        yield


@contextmanager
def counted_progress(message: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with `message` on stderr while the body runs.

    The body reports how many steps are done, and of how many. Nothing is shown when stderr is not a
    terminal.
    """
    if not sys.stderr.isatty():
        yield lambda done, steps: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(message, total=None)
        yield lambda done, steps: bar.update(task, completed=done, total=steps)


@contextmanager
def quiet_downloads() -> Iterator[None]:
    """Keep huggingface_hub's progress bars away while the body runs.

    They stay where stderr is a terminal or the user chose.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    chosen = constants.HF_HUB_DISABLE_PROGRESS_BARS is not None
    if chosen or sys.stderr.isatty() or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
