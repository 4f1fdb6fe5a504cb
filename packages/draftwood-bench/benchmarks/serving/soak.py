"""A server under more load than it can take, with clients of every bad habit.

    python -m benchmarks.serving.soak --minutes 15 --output soak.json

Starts `draftwood serve` as a process, asks for each of some requests alone, and from then on twice
as many clients as it writes texts at once ask for them in any order, streamed or not. Some leave in
the midst of an answer, some are killed, some send bodies that mean nothing. Every whole answer must
be the one that was given alone, with the same usage; nothing may be lost; at the end nothing may be
running, and the server's memory may not have grown.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.serving.event_reader import EventReader

BAD_BODIES = (
    b"",
    b"{",
    b"null",
    b'{"prompt": 7}',
    b'{"prompt": "a", "temperature": NaN}',
    b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    b'{"prompt": "\\ud800"}',
    b"[" * 5000,
)
WORDS = "a river of light and the old stone bridge where nobody counted days".split()


@dataclass
class Counts:
    """Answers that clients saw, by outcome.

    Attributes:
        faults: answers that should not have been; none are allowed.
    """

    by_end: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Known:
    """A request and the answer that it got alone."""

    path: str
    body: dict[str, Any]
    texts: list[str]
    usage: dict[str, int]


def requests(count: int, tokens: int) -> list[tuple[str, dict[str, Any]]]:
    """Requests of all kinds, each with a seed of its own."""
    draw, found = random.Random(7), []
    for number in range(count):
        words = " ".join(draw.choices(WORDS, k=draw.randint(2, 30)))
        body: dict[str, Any] = {
            "seed": number,
            "max_tokens": draw.randint(tokens // 4, tokens),
            "temperature": (0, 0.8)[number % 2],
            "n": (1, 1, 1, 2)[number % 4],
        }
        if number % 5 == 0:
            body["speculative"] = False
        if number % 5 == 1:
            body["speculative"] = {"method": "lookup"}
        if number % 3 == 0:
            body["stop"] = ["\n\n", "zq"]
        if number % 2:
            found.append(("/v1/completions", {"prompt": words, **body}))
        else:
            messages = [{"role": "user", "content": words}]
            found.append(("/v1/chat/completions", {"messages": messages, **body}))
    return found


def tokens_of(usage: dict[str, Any]) -> dict[str, int]:
    """The counts that are the same whatever was in the cache."""
    return {name: count for name, count in usage.items() if name != "prompt_tokens_details"}


def texts_of(answer: dict[str, Any]) -> list[str]:
    return [
        choice["text"] if "text" in choice else choice["message"]["content"]
        for choice in answer["choices"]
    ]


async def streamed(
    client: httpx.AsyncClient, known: Known, leave_after: int | None
) -> tuple[list[str], dict[str, int]] | None:
    """Texts and usage of a stream; None for one that was left."""
    body = {**known.body, "stream": True, "stream_options": {"include_usage": True}}
    texts, usage, seen = [""] * known.body["n"], {}, 0
    async with client.stream("POST", known.path, json=body) as response:
        if response.status_code != 200:
            raise httpx.HTTPStatusError("", request=response.request, response=response)
        reader = EventReader()
        async for piece in response.aiter_bytes():
            for chunk in reader.read(piece):
                for choice in chunk["choices"]:
                    told = choice.get("delta", {}).get("content", "")
                    texts[choice["index"]] += choice.get("text", told)
                usage = tokens_of(chunk["usage"] or {}) or usage
                seen += 1
                if leave_after is not None and seen > leave_after:
                    return None
            if reader.ended:
                return texts, usage
    raise RuntimeError("a stream ended without its end")


async def killed(address: str, known: Known) -> None:
    """Send a request and end the connection as the system does for a killed process."""
    host, port = address.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps({**known.body, "stream": True}).encode()
    head = f"POST {known.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    await writer.drain()
    await asyncio.sleep(random.random())
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


async def client_of(
    address: str, known: list[Known], until: float, counts: Counts, seed: int
) -> None:
    """A client that asks until the time is over."""
    draw = random.Random(seed)
    async with httpx.AsyncClient(base_url=address, timeout=600) as client:
        while time.perf_counter() < until:
            try:
                await ask(client, address, draw.choice(known), draw, counts)
            except Exception as error:
                counts.faults.append(f"{type(error).__name__}: {error}"[:300])


async def ask(
    client: httpx.AsyncClient, address: str, known: Known, draw: random.Random, counts: Counts
) -> None:
    habit = draw.random()
    if habit < 0.08:
        await killed(address, known)
        counts.by_end["killed"] += 1
        return
    if habit < 0.16:
        headers = {"content-type": "application/json"}
        body = draw.choice(BAD_BODIES)
        response = await client.post(known.path, content=body, headers=headers)
        counts.by_end[f"bad body: {response.status_code}"] += 1
        if not 400 <= response.status_code < 500:
            counts.faults.append(f"{response.status_code} for a bad body: {response.text[:200]}")
        return
    try:
        if habit < 0.7:
            leave = draw.randint(0, 12) if habit < 0.3 else None
            found = await streamed(client, known, leave)
        else:
            response = await client.post(known.path, json=known.body)
            response.raise_for_status()
            answer = response.json()
            found = texts_of(answer), tokens_of(answer["usage"])
    except httpx.HTTPStatusError as error:
        if error.response.status_code != 429:
            raise
        counts.by_end["sent away"] += 1
        await asyncio.sleep(int(error.response.headers["retry-after-ms"]) / 1e3)
        return
    counts.by_end["left" if found is None else "whole"] += 1
    if found is not None and found != (known.texts, known.usage):
        counts.faults.append(f"another answer: {found} instead of {known.texts}, {known.usage}")


async def drive(address: str, known: list[Known], clients: int, seconds: float) -> Counts:
    counts, until = Counts(), time.perf_counter() + seconds
    await asyncio.gather(
        *(client_of(address, known, until, counts, seed) for seed in range(clients))
    )
    return counts


def alone(address: str, wanted: list[tuple[str, dict[str, Any]]]) -> list[Known]:
    """Each request by itself."""
    found = []
    with httpx.Client(base_url=address, timeout=600) as client:
        for path, body in wanted:
            answer = client.post(path, json=body).raise_for_status().json()
            found.append(Known(path, body, texts_of(answer), tokens_of(answer["usage"])))
    return found


def memory(process: int) -> int:
    """Bytes of a process in memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def watched(process: int, work: Any, every: float) -> tuple[Any, list[int]]:
    """Await the work while sampling the process' memory; return the result and the samples."""
    task, sizes = asyncio.ensure_future(work), []
    while not task.done():
        sizes.append(memory(process))
        await asyncio.wait([task], timeout=every)
    return task.result(), sizes


def idle(address: str, seconds: float = 20.0) -> bool:
    """Wait until the server has nothing to do; False if it does not come to that."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        page = httpx.get(f"{address}/metrics").text.splitlines()
        values = [
            float(line.split()[-1])
            for line in page
            if line.startswith(("draftwood:texts_running{", "draftwood:texts_waiting{"))
        ]
        if values and not any(values):
            return True
        time.sleep(0.2)
    return False


def start(model: str, arguments: list[str]) -> tuple["subprocess.Popen[str]", str]:
    """A server as a process of its own, and its address."""
    command = [sys.executable, "-m", "draftwood.cli.main", "serve", model, "--port", "0", "--json"]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("the server did not start")
    return process, json.loads(line)["address"]


def soak(
    model: str, minutes: float, batch: int, count: int, tokens: int, arguments: list[str]
) -> dict[str, Any]:
    """Run everything; what was seen."""
    limits = ["--max-batch", str(batch), "--max-queue", str(batch // 2)]
    process, address = start(model, [*limits, *arguments])
    try:
        known = alone(address, requests(count, tokens))
        seconds = 60.0 * minutes
        # what was asked alone has not filled the caches yet
        warm = asyncio.run(drive(address, known, 2 * batch, min(180.0, 0.2 * seconds)))
        work = drive(address, known, 2 * batch, seconds)
        counts, sizes = asyncio.run(watched(process.pid, work, min(5.0, seconds / 20)))
        quiet = idle(address)
        again = alone(address, requests(count, tokens)[:8])
        process.send_signal(signal.SIGTERM)
        ended = process.wait(60)
    finally:
        process.kill()
    third = max(1, len(sizes) // 3)
    first, last = (sum(part) / len(part) for part in (sizes[:third], sizes[-third:]))
    return {
        "model": model,
        "minutes": minutes,
        "clients": 2 * batch,
        "ends": dict(counts.by_end),
        "faults": [*warm.faults, *counts.faults],
        "idle_at_the_end": quiet,
        "same_texts_at_the_end": again == known[:8],
        "exit_code": ended,
        "memory_bytes": {"first_third": round(first), "last_third": round(last)},
        "memory_growth": round(last / first - 1, 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--growth", type=float, default=0.01, help="most growth of memory")
    parser.add_argument("--output", type=Path)
    options, arguments = parser.parse_known_args()
    found = soak(
        options.model,
        options.minutes,
        options.batch,
        options.requests,
        options.tokens,
        arguments,
    )
    text = json.dumps(found, indent=1)
    if options.output is not None:
        options.output.write_text(text + "\n")
    print(text)
    good = not found["faults"] and found["idle_at_the_end"] and found["same_texts_at_the_end"]
    return 0 if good and not found["exit_code"] and found["memory_growth"] < options.growth else 1


if __name__ == "__main__":
    sys.exit(main())
