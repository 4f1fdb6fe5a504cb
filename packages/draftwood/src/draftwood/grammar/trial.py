"""Compile a grammar in a process of its own, which ends where that takes too long."""

import faulthandler
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock, stack_size
from typing import Any

SECONDS = 5.0
"""For one grammar. The compiler looks at every way in which expressions may meet: with two dozen of
them it takes all memory there is, and nothing but the end of its process stops it.
"""
DEEP_STACK = 256 << 20
"""Bytes of stack for the compiler, which goes down a grammar rule by rule: on a usual stack, one of
60 kB whose every rule names the next ends the process. Only what is used takes memory.
"""
SIZES = Lock()
"""Held while the size of new stacks, which is the process's, is another."""


def compiles(source: str, tokens: dict[str, Any]) -> bool:
    """Try a grammar; False where it takes longer than ``SECONDS``, or ends the process.

    One that is refused in time compiles too: the compiler tells why when it is asked again.

    Args:
        source: as llguidance reads it.
        tokens: arguments of ``LLTokenizer``.
    """
    given = json.dumps({"source": source, "tokens": tokens})
    command = [sys.executable, "-c", f"from {__name__} import main; main()"]
    made = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    return made.returncode == 0


def main() -> None:
    """Compile the grammar that standard input holds."""
    import llguidance

    given = json.load(sys.stdin)
    tokens = llguidance.LLTokenizer(given["tokens"].pop("text"), **given["tokens"])
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(SECONDS, exit=True, file=nowhere)
        on_deep_stack(lambda: llguidance.LLMatcher(tokens, given["source"], log_level=0))
        faulthandler.cancel_dump_traceback_later()


def on_deep_stack(work: Callable[[], Any]) -> Any:
    """Give what a function gives that needs ``DEEP_STACK``, from a thread of its own."""
    pool = ThreadPoolExecutor(1)
    with SIZES:
        before = stack_size(DEEP_STACK)
        try:
            made = pool.submit(work)
        finally:
            stack_size(before)
    with pool:
        return made.result()
