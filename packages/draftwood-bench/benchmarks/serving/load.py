"""Load for servers: guidellm, and a client that sees every chunk."""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, zip_longest
from pathlib import Path
from statistics import median
from typing import Any

from httptools import HttpResponseParser

from benchmarks.serving.event_reader import EventReader
from benchmarks.serving.servers import OFFLINE, System
from draftwood_bench.peers import environments
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.plan.prompts import load_prompts

CELL_SECONDS = 1800.0
TOLD = 0.75  # least share of a cell's requests


def spread_prompts(source: str) -> list[Prompt]:
    """All prompts of a set, categories in turns."""
    by_category: dict[str, list[Prompt]] = {}
    for prompt in load_prompts(source).prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    rows = zip_longest(*by_category.values())
    return [prompt for row in rows for prompt in row if prompt is not None]


@dataclass(frozen=True)
class Cell:
    """One level of load: streams, prompts and length of answers.

    Attributes:
        streams: at once.
        prompts: asked for in this order, each once.
        tokens: of each answer.
    """

    streams: int
    prompts: tuple[Prompt, ...]
    tokens: int


def by_guidellm(system: System, address: str, cell: Cell, tokenizer: Path, folder: Path) -> dict:
    """A cell's figures as guidellm sees them; two kinds of requests take a guidellm each.

    Raises OSError that says what failed.
    """
    parts = system.bodies[: cell.streams]
    running = []
    for number, body in enumerate(parts):
        place = folder / f"part-{number}"
        place.mkdir(parents=True, exist_ok=True)
        own = Cell(cell.streams // len(parts), cell.prompts[number :: len(parts)], cell.tokens)
        running.append((place, _guidellm(system, address, own, body, tokenizer, place), own))
    requests: list[dict] = []
    for place, process, own in running:
        status = process.wait(CELL_SECONDS)
        report = place / "report.json"
        if status or not report.is_file():
            raise OSError(f"guidellm ended with status {status}; its log is {place / 'log'}")
        found = json.loads(report.read_text())["benchmarks"][0]["requests"]
        told = len(found["successful"])  # guidellm now and then leaves its last request out
        if found["errored"] or told < TOLD * len(own.prompts):
            raise OSError(f"{told} of {len(own.prompts)} answers are told of; {place / 'log'}")
        requests += found["successful"]
    return _figures(requests, cell)


def _guidellm(
    system: System, address: str, cell: Cell, body: dict[str, Any], tokenizer: Path, place: Path
) -> "subprocess.Popen[bytes]":
    """A guidellm that asks for the prompts of a cell."""
    lines = [json.dumps({"prompt": prompt.turns[0]}) for prompt in cell.prompts]
    (place / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    extras = {"body": {"temperature": 0, "max_tokens": cell.tokens, **body}}
    backend = {
        **{"kind": "openai_http", "target": address, "model": system.model},
        **{"request_format": "/v1/chat/completions", "extras": extras},
    }
    command = [str(environments.folder("guidellm") / "bin" / "guidellm"), "run"]
    for option, value in (
        ("backend", backend),
        ("profile", {"kind": "concurrent", "streams": cell.streams}),
        ("constraint", {"kind": "max_requests", "count": len(cell.prompts)}),
        ("data", {"kind": "json_file", "path": str(place / "prompts.jsonl")}),
        ("tokenizer", {"kind": "huggingface_auto", "model": str(tokenizer)}),
        ("output", {"kind": "json", "path": str(place / "report.json")}),
    ):
        command += [f"--{option}", json.dumps(value)]
    with (place / "log").open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **OFFLINE, "GUIDELLM__MAX_WORKER_PROCESSES": "1"},
        )


def _figures(requests: Sequence[dict], cell: Cell) -> dict[str, Any]:
    tokens = [request["output_tokens"] for request in requests]
    seconds = max(each["request_end_time"] for each in requests) - min(
        each["request_start_time"] for each in requests
    )
    firsts = sorted(each["time_to_first_token_ms"] for each in requests)
    each_token = [
        (1000 * request["request_latency"] - request["time_to_first_token_ms"]) / (count - 1)
        for request, count in zip(requests, tokens, strict=True)
    ]
    return {
        "requests": len(requests),
        "output_tokens": sum(tokens),
        "short_answers": sum(count < cell.tokens for count in tokens),
        "seconds": round(seconds, 3),
        "tokens_per_second": round(sum(tokens) / seconds, 2),
        "first_token_ms": round(median(firsts), 1),
        "worst_first_token_ms": round(firsts[-1], 1),
        "ms_per_output_token": round(median(each_token), 2),
    }


@dataclass
class Answer:
    """A streamed answer as it came.

    What comes is noted and read at the end: whoever reads it meanwhile takes the cores of the
    server that is measured.

    Attributes:
        sent: when it was asked for, in seconds.
        parts: when something came, and what.
    """

    sent: float
    parts: list[tuple[float, bytes]] = field(default_factory=list)

    @cached_property
    def chunks(self) -> list[tuple[float, int]]:
        """When, and how many tokens were there by then, for each chunk with text."""
        found: list[tuple[float, int]] = []
        for now, chunk in self._events:
            if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                usage = chunk.get("usage") or {}
                found.append((now, usage.get("completion_tokens", len(found) + 1)))
        return found

    @property
    def prompt_tokens(self) -> int:
        """As the server counts them."""
        told = [(chunk.get("usage") or {}).get("prompt_tokens", 0) for _, chunk in self._events]
        return max(told, default=0)

    @cached_property
    def _events(self) -> list[tuple[float, dict[str, Any]]]:
        """Raises OSError for an answer that is an error, or breaks off with one."""
        body = _Body()
        parser, reader, found = HttpResponseParser(body), EventReader(), []
        for now, part in self.parts:
            parser.feed_data(part)
            if parser.get_status_code() == 200:
                found += [(now, chunk) for chunk in reader.read(body.take())]
        if self.parts and parser.get_status_code() != 200:
            raise OSError(f"the server answered {parser.get_status_code()}: {body.take()[:200]!r}")
        return found

    @property
    def first_ms(self) -> float:
        """Milliseconds to the first chunk with text."""
        return 1000 * (self.chunks[0][0] - self.sent)

    @property
    def end(self) -> float:
        return self.chunks[-1][0]

    def tokens_until(self, moment: float) -> int:
        return max((count for when, count in self.chunks if when <= moment), default=0)


class _Body:
    """Takes the body of an answer from its parser."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def take(self) -> bytes:
        """Take the bytes that came since the last call."""
        found, self.parts = b"".join(self.parts), []
        return found


def body_of(messages: Sequence[dict[str, str]], tokens: int, **more: Any) -> dict[str, Any]:
    """A greedy request of so many tokens, streamed with the usage in every chunk."""
    usage = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"messages": list(messages), "temperature": 0, "max_tokens": tokens, **more}
    return {**asked, "stream": True, "stream_options": usage}


async def answer(address: str, body: dict[str, Any], into: Answer) -> Answer:
    """Ask and note what comes; what has come is in ``into`` at any time."""
    host, port = address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
    told = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write((head + told).encode() + content)
    try:
        while part := await reader.read(2**16):
            into.parts.append((time.perf_counter(), part))
    finally:
        writer.close()
    return into


def at_once(address: str, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    """Ask for all of them at the same moment."""

    async def work() -> list[Answer]:
        asked = [answer(address, body, Answer(time.perf_counter())) for body in bodies]
        return list(await asyncio.gather(*asked))

    found = asyncio.run(work())
    if not all(each.chunks for each in found):
        raise OSError("the server answered without text")
    return found


def beside_prefill(
    address: str, bodies: Sequence[dict[str, Any]], long: dict[str, Any]
) -> tuple[list[float], Answer]:
    """Milliseconds between chunks of streams while a long prompt is read, and its answer."""

    async def work() -> tuple[list[float], Answer]:
        streams = [Answer(time.perf_counter()) for _ in bodies]
        tasks = [
            asyncio.ensure_future(answer(address, body, stream))
            for body, stream in zip(bodies, streams, strict=True)
        ]
        try:
            while not all(len(stream.parts) > 8 for stream in streams):
                await asyncio.sleep(0.01)
                for task in tasks:
                    if task.done():
                        task.result()
            asked = await answer(address, long, Answer(time.perf_counter()))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return gaps(streams, asked.sent, asked.chunks[0][0]), asked

    return asyncio.run(work())


def gaps(streams: Sequence[Answer], since: float, until: float) -> list[float]:
    """Milliseconds between chunks that come one after the other, where any of it is in between."""
    found = []
    for stream in streams:
        times = [when for when, _ in stream.chunks]
        if times[-1] < until:
            raise OSError("a stream ended before the long prompt was read; ask for more tokens")
        found += [1000 * (b - a) for a, b in pairwise(times) if b > since and a < until]
    return found
