"""Commands run as a user would type them."""

import os
import signal
from pathlib import Path

from click.testing import CliRunner, Result

from draftwood.cli.main import main
from draftwood.native import library


def with_library(home: Path) -> dict[str, str]:
    """An environment with this home, where the library is compiled already."""
    if library.available():
        compiled = Path(library.library()._name).parent
        (home / "kernels").mkdir(parents=True, exist_ok=True)
        if not (home / "kernels" / compiled.name).exists():
            (home / "kernels" / compiled.name).symlink_to(compiled)
    return {**os.environ, "DRAFTWOOD_HOME": str(home)}


def run(*arguments: str, given: str | bytes | None = None) -> Result:
    """A command as a user types it; no traceback may reach them."""
    result = CliRunner().invoke(main, list(arguments), input=given)
    assert "Traceback" not in result.output
    return result


def refused(*arguments: str, given: str | bytes | None = None) -> str:
    """The one line in which a command refuses its input, with exit code 2 and nothing on stdout."""
    result = run(*arguments, given=given)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    line = result.stderr.removesuffix("\n")
    assert line.startswith("draftwood: error: ")
    assert "\n" not in line
    return line


def hear_ctrl_c() -> None:
    """For a child process: take Ctrl-C as usual, even where the tests run in the background and
    ignore it.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
