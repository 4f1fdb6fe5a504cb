"""Commands run as a user would type them."""

import signal

from click.testing import CliRunner, Result

from draftwood.cli.main import main


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
