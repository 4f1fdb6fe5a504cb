"""Code that answers hold, run with a task's tests.

It runs as the user who measures, within limits of time and memory: only prompt sets whose name says
so bring tests.
"""

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

from draftwood.limited import run_limited

SECONDS, MEMORY = 10.0, 1 << 30
"""Time that an answer's code may take, and bytes."""
PASSED = "every test has passed"


def passes(text: str, tests: str) -> bool:
    """Tell whether an answer's code passes tests.

    Args:
        text: the answer, whose first fenced block is its code; without one it is code itself.
        tests: Python that fails where the code is wrong.
    """
    code = code_of(text)
    if not code.strip():
        return False
    whole = f"{code}\n\n{tests}\n\nprint({PASSED!r})\n"
    with TemporaryDirectory() as folder:
        try:
            ended = run_limited(
                [sys.executable, "-I", "-"], whole.encode(), SECONDS, MEMORY, Path(folder)
            )
        except (TimeoutError, OSError, subprocess.SubprocessError):
            return False
    return not ended.code and ended.out.decode("utf-8", "replace").strip().endswith(PASSED)


def code_of(text: str) -> str:
    """The first fenced block of a text, whether it is closed or not; all of it without a fence."""
    found = re.search(r"^[ \t]*```[\w+-]*[ \t]*\n(.*?)(?:^[ \t]*```|\Z)", text, re.M | re.S)
    return text if found is None else dedent(found[1])
