"""The server's log: a line for each request, and notes. No text of a prompt or answer is in it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from time import perf_counter
from typing import Any

from draftwood_serve.command import LEVELS
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


@dataclass(frozen=True)
class ServerLog:
    """Lines of a server, on standard error.

    Args:
        level: of ``LEVELS``; lines of less weight are left out.
        as_json: write each as a JSON object.
        colour: whether the terminal shows it.
        write: takes a line.
    """

    level: str = "info"
    as_json: bool = False
    colour: bool = False
    write: Callable[[str], None] = lambda line: None

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

    def request(self, told: dict[str, Any], job: TextJob | None) -> None:
        """Write the line of a request that has ended.

        Args:
            told: client, method, path, status, model and seconds.
            job: that wrote its texts, if it came so far.
        """
        level = level_of(told, job)
        if not self.shows(level):
            return
        now = datetime.now().astimezone()
        if job is not None:
            told = {**told, **counts_of(job)}
        costs = step_costs(job, job.stats) if job is not None and self.shows("debug") else None
        if self.as_json:
            if costs is not None:
                parts = {name: round(1e3 * each, 3) for name, each in costs.parts.items()}
                told = {**told, "step_ms": parts, "drafts": costs.worth}
            self.write(json.dumps({"time": now.isoformat(), "level": level, **told}))
            return
        status = self._paint(str(told["status"]), COLOURS[level])
        asked = f"{told['client']} {told['method']} {told['path']}"
        self.write(f"{self._paint(f'{now:%H:%M:%S}', '2')} {asked} {status}{in_words(told)}")
        for line in costs.lines if costs is not None else ():
            self.write(self._paint(f"  {line}", "2"))

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text


def level_of(told: dict[str, Any], job: TextJob | None) -> str:
    """Level of a request's line."""
    status = told["status"]
    if status >= 500 or (job is not None and job.end == "failed"):
        return "error"
    if status >= 400 and status != LEFT:
        return "warning"
    return "debug" if told["path"] in QUIET else "info"


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
        "ended": job.end or "cancelled",
    }


def in_words(told: dict[str, Any]) -> str:
    """The end of a line: model, tokens and times."""
    found = f" {told['model']}" if told["model"] else ""
    if "tokens" in told:
        found += f" {told['prompt_tokens']}+{told['tokens']} tokens"
        if told["passes"]:
            found += f", {told['passes']} passes, {told['tokens_per_pass']:.2f} a pass"
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
        app: the other one, which may tell ``model``, ``job`` and ``error`` in the request's state.
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
                "model": state.get("model"),
                "error": state.get("error"),
                "seconds": round(perf_counter() - since, 3),
            }
            self.log.request(told, state.get("job"))


def path_of(scope: Message) -> str:
    """The path without its query, safe to be shown in one line."""
    path = scope.get("raw_path") or scope["path"].encode()
    shown = path.decode("latin-1").partition("?")[0][:PATH_CHARACTERS]
    return "".join(each if each.isascii() and each.isprintable() else "?" for each in shown)
