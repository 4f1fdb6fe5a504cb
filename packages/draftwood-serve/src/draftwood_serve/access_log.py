"""The server's log: a line for each request, and notes. No text of a prompt or answer is in it."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from time import perf_counter
from typing import Any

from draftwood_serve.command import LEVELS
from draftwood_serve.errors import as_json
from draftwood_serve.guard import App, Message, Receive, Send
from draftwood_serve.jobs import TextJob
from draftwood_serve.metrics import step_costs
from draftwood_serve.page import PAGE_FILES

COLOURS = {"error": "31", "warning": "33", "info": "32", "debug": "2"}
QUIET = {"/health", "/metrics", "/page.json", *PAGE_FILES} - {"/"}
"""Paths that are asked for often and by themselves: lines of the level debug."""
LEFT = 499
"""Status of a request whose client left before its answer, as other servers log it."""
PATH_CHARACTERS = 200
OUTCOME = b"x-draftwood-outcome"
"""Header by which a router asks what came of a request, and is told of an answer in one piece."""
MARK = b"\0"
"""Begins what a router is told behind a stream, none of whose events holds it."""
ENDS = {"text/event-stream": b"\n\n", "application/x-ndjson": b"\n"}
"""Ends of an event by the kind of stream."""


def nowhere(line: str) -> None:
    """Write no line."""


@dataclass(frozen=True)
class ServerLog:
    """Lines of a server, on standard error.

    Args:
        level: of ``LEVELS``; lines of less weight are left out.
        as_json: write each as a JSON object.
        colour: whether the terminal shows it.
        write: takes a line; a replica's go nowhere, as its router has a log.
    """

    level: str = "info"
    as_json: bool = False
    colour: bool = False
    write: Callable[[str], None] = nowhere

    def shows(self, level: str) -> bool:
        return LEVELS.index(level) <= LEVELS.index(self.level)

    def note(self, message: str, level: str = "info") -> None:
        """Write what is no request."""
        if not self.shows(level):
            return
        now = datetime.now().astimezone()
        if self.as_json:
            self.write(json.dumps({"time": now.isoformat(), "level": level, "message": message}))
        else:
            self.write(self._paint(f"{now:%H:%M:%S} {message}", "2"))

    def request(self, told: dict[str, Any], outcome: Mapping[str, Any]) -> None:
        """Write the line of a request that has ended.

        Args:
            told: client, method, path, status and seconds.
            outcome: see ``outcome_of``.
        """
        told = {**told, "model": outcome["model"], "error": outcome["error"]}
        told |= outcome["counts"] or {}
        costs = (outcome["costs"] or {}) if self.shows("debug") else {}
        level = level_of(told)
        if not self.shows(level):
            return
        now = datetime.now().astimezone()
        if self.as_json:
            told |= {name: costs[name] for name in costs if name != "lines"}
            self.write(json.dumps({"time": now.isoformat(), "level": level, **told}))
            return
        status = self._paint(str(told["status"]), COLOURS[level])
        asked = f"{told['client']} {told['method']} {told['path']}"
        self.write(f"{self._paint(f'{now:%H:%M:%S}', '2')} {asked} {status}{in_words(told)}")
        for line in costs.get("lines", ()):
            self.write(self._paint(f"  {line}", "2"))

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text


class _Notes(logging.Handler):
    """Writes what another part of the process logs, tracebacks too, as notes of a server's log."""

    def __init__(self, log: ServerLog) -> None:
        super().__init__(logging.WARNING)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warning"
        self.log.note(self.format(record), level)


@contextmanager
def noting(logger: logging.Logger, log: ServerLog) -> Iterator[None]:
    """Write what a logger tells as lines of the server's log; of one that goes nowhere, as ever."""
    if log.write is nowhere:
        yield
        return
    handler = _Notes(log)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def level_of(told: dict[str, Any]) -> str:
    """Level of a request's line."""
    status = told["status"]
    failed = told.get("ended") == "failed" or (status < 400 and told["error"])  # amid a stream
    if status >= 500 or failed:
        return "error"
    if status >= 400 and status != LEFT:
        return "warning"
    return "debug" if told["path"] in QUIET else "info"


def outcome_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Outcome of a request, by its state: the model, the error's code, the counts of its texts and
    the costs of their steps, each None where there is none.
    """
    job = state.get("job")
    own: dict[str, Any] = {}
    if job is not None:
        own = {"counts": counts_of(job), "costs": costs_of(job)}
        own |= {"error": job.error} if job.error else {}
    return {name: own.get(name, state.get(name)) for name in ("model", "error", "counts", "costs")}


def costs_of(job: TextJob) -> dict[str, Any]:
    """Milliseconds of an average step, whether drafts paid, and both in words."""
    costs = step_costs(job, job.stats)
    parts = {name: round(1e3 * each, 3) for name, each in costs.parts.items()}
    return {"step_ms": parts, "drafts": costs.worth, "lines": costs.lines}


def counts_of(job: TextJob) -> dict[str, Any]:
    """Numbers of a request's texts."""
    stats = job.stats
    return {
        "prompt_tokens": job.prompt_tokens,
        "tokens": stats.tokens,
        "passes": stats.target_runs,
        "tokens_per_pass": round(stats.block_efficiency, 2),
        "acceptance": round(stats.accepted / stats.drafted, 3) if stats.drafted else None,
        "first_token_s": round(job.first_token - job.arrived, 3) if job.first_token else None,
        "ended": "failed" if job.error else job.end or "cancelled",
    }


def in_words(told: dict[str, Any]) -> str:
    """The end of a line: model, tokens and times."""
    found = f" {told['model']}" if told["model"] else ""
    if "tokens" in told:
        found += f" {told['prompt_tokens']}+{told['tokens']} tokens"
        if told["passes"]:
            passes = f"{told['passes']} pass{'es' * (told['passes'] != 1)}"
            found += f", {passes}, {told['tokens_per_pass']:.2f} a pass"
        if told["acceptance"] is not None:
            found += f", {told['acceptance']:.0%} of drafts accepted"
        if told["first_token_s"] is not None:
            found += f", first after {told['first_token_s']:.2f} s"
        if told["ended"] != "finished":
            found += f", {told['ended']}"
    if told["error"]:
        found += f" {told['error']}"
    return f"{found}, {told['seconds']:.2f} s in all" if found else f" {told['seconds']:.2f} s"


class Logged:
    """Application that logs each request of another one.

    Args:
        app: the other one, which may tell ``model``, ``error`` and ``job``, or what a replica told
            of that, in the request's state.
        log: takes the lines.
    """

    def __init__(self, app: App, log: ServerLog) -> None:
        self.app, self.log = app, log

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        since, status = perf_counter(), LEFT
        state: dict[str, Any] = scope.setdefault("state", {})

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noting)
        finally:
            told = {
                "client": (scope.get("client") or ("-",))[0],
                "method": scope["method"],
                "path": path_of(scope),
                "status": status,
                "seconds": round(perf_counter() - since, 3),
            }
            self.log.request(told, outcome_of(state))
            state.clear()  # an idle connection keeps its last request, which would keep its model


class Telling:
    """Application that tells a router what came of each request of another one.

    An answer in one piece tells it in the header ``OUTCOME``, a stream in a part of its own behind
    its last event, which begins with ``MARK``. Both come to those alone who ask by that header.

    Args:
        app: the other one.
    """

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if OUTCOME not in (name for name, _ in scope["headers"]):
            await self.app(scope, receive, send)
            return
        is_stream = False

        async def telling(message: Message) -> None:
            nonlocal is_stream
            if message["type"] == "http.response.start":
                headers = message["headers"]
                is_stream = end_of_events(dict(headers).get(b"content-type", b"").decode()) != b""
                own = [] if is_stream else [(OUTCOME, told())]
                message = {**message, "headers": [*headers, *own]}
            elif is_stream and not message.get("more_body", False):
                message = {**message, "body": message.get("body", b"") + MARK + told()}
            await send(message)

        def told() -> bytes:
            return as_json(outcome_of(scope["state"])).encode()

        await self.app(scope, receive, telling)


def end_of_events(kind: str) -> bytes:
    """End of each event of a stream of this media type; empty for what is no stream."""
    return ENDS.get(kind.partition(";")[0], b"")


def path_of(scope: Message) -> str:
    """The path without its query, safe to be shown in one line."""
    path = scope.get("raw_path") or scope["path"].encode()
    shown = path.decode("latin-1").partition("?")[0][:PATH_CHARACTERS]
    return "".join(each if each.isascii() and each.isprintable() else "?" for each in shown)
