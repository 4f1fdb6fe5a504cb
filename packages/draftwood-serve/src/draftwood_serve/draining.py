"""Stop a server: running requests may finish within a time limit."""

import asyncio
from collections.abc import Collection
from time import perf_counter
from typing import Protocol

TELL_SECONDS = 2.0  # in which ended requests can inform their clients
POLL_SECONDS = 0.02


class Cuttable(Protocol):
    """A request that can be ended."""

    def cut(self) -> None:
        """End it with an error, as the server stops."""
        ...


async def drain(under_way: Collection[Cuttable], seconds: float) -> None:
    """Wait until all requests have left the collection; end those that take longer."""
    await _empty(under_way, seconds)
    for request in list(under_way):
        request.cut()
    await _empty(under_way, TELL_SECONDS)


async def _empty(under_way: Collection[Cuttable], seconds: float) -> None:
    until = perf_counter() + seconds
    while under_way and perf_counter() < until:
        await asyncio.sleep(POLL_SECONDS)
