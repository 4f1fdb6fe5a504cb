"""Response of server-sent events that always closes its request."""

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import Response

from draftwood_serve.service import OpenRequest

Message = MutableMapping[str, Any]

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response):
    """Send events one after the other; one write for each string that they yield.

    Args:
        events: to be sent.
        request: that is closed at the end.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], request: OpenRequest) -> None:
        super().__init__(media_type=self.media_type)
        self.events, self.request = events, request

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            async for events in self.events:
                body = events.encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.request.close()
