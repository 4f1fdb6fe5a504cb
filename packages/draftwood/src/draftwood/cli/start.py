"""Begin and end a command's process: Ctrl-C is heard from the first moment on, and the process is
gone once the command is.

Imports next to nothing itself.
"""

import atexit
import os
import sys

from draftwood.lazy import UNCOLLECTED

TYPE_CHECKING = False  # as in draftwood.lazy
if TYPE_CHECKING:
    from sys import UnraisableHookArgs
    from types import FrameType

INTERRUPTED, FAILED = 130, 1
MACHINERY = ("importlib._bootstrap", "_frozen_importlib")
"""Names of the module that imports, with importlib and before it is imported itself."""
PATIENCE = 0.5
"""Seconds that threads and exit handlers get after Ctrl-C."""
DELAY = 0.01
"""Seconds after which a Ctrl-C that came at a bad time is raised."""
_delayed: set[object] = set()
"""Ctrl-Cs of this process that are not raised yet."""


def main() -> None:
    """Run the command line and leave with its exit code."""
    ending = Ending()
    try:
        atexit.register(ending.leave)  # the first that registers is the last that is called
        hear_ctrl_c()
        with UNCOLLECTED:
            from draftwood.cli.main import main as run

        run()
    except SystemExit as end:
        ending.code = end.code if isinstance(end.code, int) else FAILED if end.code else 0
        if ending.code == INTERRUPTED:
            ending.leave_soon()
        raise
    except KeyboardInterrupt:  # before the command line could hear it
        stop()
    except BaseException:
        ending.code = FAILED
        raise


class Ending:
    """The end of the process, with its exit code."""

    def __init__(self) -> None:
        self.code = 0

    def leave(self) -> None:
        """End at once: unloading modules takes longer than the rest of most commands."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):  # nobody listens, or there is none
                self.code = self.code or FAILED
        os._exit(self.code)

    def leave_soon(self) -> None:
        """End after a while, whatever threads do."""
        from threading import Timer

        timer = Timer(PATIENCE, self.leave)
        timer.daemon = True
        timer.start()


def hear_ctrl_c(ends_imports: bool = True) -> None:
    """Let Ctrl-C end the process at once during imports, as many modules take it for an error of
    theirs. Otherwise it raises KeyboardInterrupt, as usual, and once more where a finaliser was
    under way, whose errors Python ignores.

    Args:
        ends_imports: False waits for imports to end and raises it then.
    """
    import signal
    import time
    from _thread import interrupt_main, start_new_thread

    tell = sys.unraisablehook

    def interrupt(one: object) -> None:
        time.sleep(DELAY)  # for what ignores errors to end
        interrupt_main()
        _delayed.discard(one)

    def delay() -> None:
        _delayed.add(one := object())
        start_new_thread(interrupt, (one,))

    def hear_again(ignored: "UnraisableHookArgs") -> None:
        if isinstance(ignored.exc_value, KeyboardInterrupt):
            delay()
        else:
            tell(ignored)

    def hear(number: int, frame: "FrameType | None") -> None:
        if _imports(frame):
            if ends_imports:
                stop()
            delay()
            return
        signal.default_int_handler(number, frame)

    # where it is ignored, as in the background of a script, it stays so
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler or getattr(before, "__module__", None) == __name__:
        signal.signal(signal.SIGINT, hear)
        sys.unraisablehook = hear_again


def await_ctrl_c() -> None:
    """Return once no Ctrl-C is delayed.

    Raises:
        KeyboardInterrupt: for one that was.
    """
    if _delayed:
        import time

        while _delayed:
            time.sleep(DELAY / 10)
        time.sleep(0)  # a call, after which Python raises what is due


def stop() -> None:
    """Print that the command was stopped, and exit."""
    show_cursor = "\x1b[?25h\n" if sys.stderr.isatty() else ""  # a progress bar hides it
    os.write(2, f"{show_cursor}draftwood: stopped\n".encode())
    os._exit(INTERRUPTED)


def _imports(frame: "FrameType | None") -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") in MACHINERY:
            return True
        frame = frame.f_back
    return False
