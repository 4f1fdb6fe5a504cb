"""Streams of events end with their request's time, whoever does not read them."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from draftwood_serve import stream
from draftwood_serve.service import OpenRequest
from draftwood_serve.stream import ABORT, EventStream


class Open:
    """A request with a time limit."""

    def __init__(self, seconds_left: float) -> None:
        self.seconds_left, self.is_closed = seconds_left, False

    def close(self) -> None:
        self.is_closed = True


async def events() -> AsyncIterator[str]:
    for number in range(3):
        yield f"data: {number}\n\n"


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def sent(request: Open, reads: int) -> list[dict[str, Any]]:
    """Messages that a client gets who reads so many of them."""
    got: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        if len(got) == reads:
            await asyncio.Event().wait()
        got.append(message)

    answer = EventStream(events(), cast(OpenRequest, request))
    scope = {
        "type": "http",
        "extensions": {ABORT: {"call": lambda: got.append({"type": "aborted"})}},
    }
    asyncio.run(answer(scope, never, send))
    return got


def test_one_who_reads_gets_all() -> None:
    request = Open(60.0)
    got = sent(request, 9)
    assert b"".join(each.get("body", b"") for each in got).count(b"data") == 3
    assert got[-1]["more_body"] is False
    assert request.is_closed


def test_one_who_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LAST_WORD_SECONDS", 0.05)
    request, since = Open(0.1), time.perf_counter()
    got = sent(request, 2)
    assert time.perf_counter() - since < 10
    assert got[-2]["more_body"] is True
    assert got[-1] == {"type": "aborted"}
    assert request.is_closed
