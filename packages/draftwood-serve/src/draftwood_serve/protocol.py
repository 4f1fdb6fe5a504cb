"""uvicorn's HTTP protocol with limits on the size and time of headers."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from draftwood_serve.errors import ApiError
from draftwood_serve.settings import HEADER_BYTES, HEADER_SECONDS
from draftwood_serve.stream import ABORT


class LimitedHttp(HttpToolsProtocol):
    """Connection that limits the size and time of each request's headers."""

    header_seconds = HEADER_SECONDS

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._header_bytes = 0  # but those of a request that came with its first piece
        self._late: asyncio.TimerHandle | None = None  # while headers are waited for

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._got_headers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._header_bytes += len(data)
        super().data_received(data)
        if self._late is not None and self._header_bytes > HEADER_BYTES:
            self._refuse(ApiError(431, f"the headers are longer than {HEADER_BYTES} bytes"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait_for_headers()

    def on_headers_complete(self) -> None:
        self._got_headers()
        super().on_headers_complete()
        # the request begins in the loop's next turn
        self.scope["extensions"] = {ABORT: {"call": self.transport.abort}}

    def _wait_for_headers(self) -> None:
        if self._late is None:
            self._header_bytes = 0
            self._late = self.loop.call_later(self.header_seconds, self._too_late)

    def _got_headers(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        told = f"the headers did not come within {self.header_seconds:g} s"
        self._refuse(ApiError(408, told, code="request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Send the error and close the connection."""
        self._got_headers()
        if self.transport.is_closing():
            return
        body = error.response().body
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(STATUS_LINE[error.status] + head % len(body) + body)
        self.transport.close()
