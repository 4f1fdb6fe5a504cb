"""Adapter processes, which answer line by line and are stopped between requests."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from draftwood_bench.peers.protocol import PeerRequest, Reply


class AdapterError(Exception):
    """Raised when an adapter could not start, died, or sent a malformed answer; says which."""


class Adapter:
    """A running adapter; use it in a ``with`` statement.

    Between requests its whole process group is stopped, so that it takes no CPU time from others.

    Args:
        command: what to run.
        log: file for everything it prints besides answers.
        environment: variables to set.
        start_seconds: longest time to load the model.
        answer_seconds: longest time for one answer.

    Raises:
        AdapterError: when it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        start_seconds: float = 900,
        answer_seconds: float = 600,
    ) -> None:
        self.log, self.answer_seconds = log, answer_seconds
        self._unread = b""
        with log.open("wb") as errors:
            try:
                # A group of its own in this session: should this process be killed, the system ends
                # the stopped group.
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env={**os.environ, **(environment or {})},
                    preexec_fn=os.setpgrp,
                )
            except OSError as error:
                raise AdapterError(f"cannot start {command[0]}: {error}") from None
        try:
            self.description = self._described(self._line(start_seconds))
        except BaseException:  # an interrupt too: it would live on
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def ask(self, request: PeerRequest) -> Reply:
        """Send one request and return the answer.

        Raises AdapterError when none comes, and then the adapter is ended.
        """
        try:
            answer = self._answer(request)
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)
        return answer

    def _answer(self, request: PeerRequest) -> Reply:
        assert self.process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps(asdict(request)).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise AdapterError(self._death()) from None
        try:
            return Reply.read(self._line(self.answer_seconds))
        except (ValueError, RuntimeError) as error:
            raise AdapterError(f"{error}; its log is {self.log}") from None

    def close(self) -> None:
        """End the adapter and everything it started."""
        self._signal(signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):  # what it did not read any more
                pipe.close()  # type: ignore[union-attr]

    def __enter__(self) -> "Adapter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _described(self, line: str) -> dict:
        try:
            fields = json.loads(line)
        except ValueError:
            raise AdapterError(
                f"began with a line that is no description: {line.strip()[:80]!r}"
            ) from None
        if "error" in fields:
            raise AdapterError(f"{fields['error']}; its log is {self.log}")
        missing = {"weights", "weight_bytes", "versions"} - set(fields)
        if missing:
            raise AdapterError(f"describes itself without {', '.join(sorted(missing))}")
        return fields

    def _line(self, seconds: float) -> str:
        """The next line from the adapter, waiting so long at most."""
        assert self.process.stdout is not None
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise AdapterError(f"gave no answer in {seconds:.0f} s")
                block = os.read(self.process.stdout.fileno(), 1 << 16)
                if not block:
                    raise AdapterError(self._death())
                self._unread += block
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def _death(self) -> str:
        """Reason of its end: the last line of its log."""
        try:
            status = self.process.wait(5)
        except subprocess.TimeoutExpired:  # it closed its output and lives on
            return f"stopped answering; its log is {self.log}"
        lines = [
            line.strip()
            for line in self.log.read_text(errors="replace").splitlines()
            if line.strip()
        ]
        return (
            f"ended with status {status}: {lines[-1][:300] if lines else 'without a word'}; its log"
            f" is {self.log}"
        )

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)
