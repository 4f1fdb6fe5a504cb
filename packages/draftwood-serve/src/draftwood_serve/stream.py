"""Response of server-sent events that always closes its request."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import Response

from draftwood_serve.service import OpenRequest

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

EVENTS, LINES = "text/event-stream; charset=utf-8", "application/x-ndjson"
HEADERS = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
LAST_WORD_SECONDS = 1.0
"""Time to tell that a request took too long."""
ABORT = "draftwood.abort"
"""Name of a request's extension that drops its connection with all that is not sent yet."""


class EventStream(Response):
    """Send events one after the other; one write for each string that they yield.

    A client that does not read them loses its connection when its request's time is over.

    Args:
        events: to be sent.
        request: that is closed at the end.
        kind: media type of the events.
    """

    def __init__(
        self, events: AsyncIterator[str], request: OpenRequest, kind: str = EVENTS
    ) -> None:
        super().__init__(media_type=kind)
        self.events, self.request = events, request

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Send,
    ) -> None:
        try:
            await asyncio.wait_for(self._send(send), self.request.seconds_left + LAST_WORD_SECONDS)
        except asyncio.TimeoutError:
            await drop_connection(scope)
        finally:
            self.request.close()

    async def _send(self, send: Send) -> None:
        headers = [(b"content-type", str(self.media_type).encode()), *HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for events in self.events:
            body = events.encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def drop_connection(scope: Message) -> None:
    """Drop a request's connection, with all that its client has not read."""
    if abort := (scope.get("extensions") or {}).get(ABORT):
        abort["call"]()
        await asyncio.sleep(0)  # for it to be lost
