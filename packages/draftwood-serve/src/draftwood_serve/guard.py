"""Checks that every request must pass before any endpoint sees it."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from draftwood_serve.errors import OLLAMA, ApiError, stopping
from draftwood_serve.page import PAGE_FILES
from draftwood_serve.panels import panel_files
from draftwood_serve.settings import (
    BODY_BYTES,
    BODY_SECONDS,
    HEADER_BYTES,
    ServeSettings,
    is_own_address,
)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

OPEN_PATHS = {"/health", *PAGE_FILES}  # need no key


class Guard:
    """Checks host, origin, key and size of a request, and reads its body within a time limit.

    A page of any site that a browser shows may send requests to this machine, also under a name
    that the page's own name server points here. Such requests name another host, or an origin.

    Args:
        app: the wrapped application.
        settings: of the server.
        body_seconds: to read a body.
    """

    def __init__(
        self, app: App, settings: ServeSettings, body_seconds: float = BODY_SECONDS
    ) -> None:
        self.app, self.settings, self.body_seconds = app, settings, body_seconds
        self._bodies: set[asyncio.Future[bytes]] = set()  # that are being read
        self._stopped = False

    def stop(self) -> None:
        """Refuse requests from now on, and those whose bodies are not whole."""
        self._stopped = True
        for each in self._bodies:
            each.cancel()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        if scope["method"] == "HEAD":  # whose answer's body the server leaves out
            scope = {**scope, "method": "GET"}
        try:
            headers = _headers(scope)
            self._require_host(headers)
            state["owner"] = self._owner(scope["path"], headers)
            scope = self._as_json(scope, headers)
            body = await self._body(headers, receive)
        except ApiError as error:
            scope["state"]["error"] = error.code  # for the log
            await error.response(scope["path"])(scope, receive, send)
        except _LeftError:
            return
        else:
            await self.app(scope, _replaying(body, receive), send)

    def _require_host(self, headers: dict[str, str]) -> None:
        host = headers.get("host", "")
        # a client with the key is trusted, whatever the host is called
        if not self.settings.api_keys and not is_own_address(_name_of(host)):
            raise ApiError(
                403,
                "this server answers to localhost only; ask for it by that name, or start it with"
                " --api-key",
                code="host_not_allowed",
            )
        origin = headers.get("origin")
        if origin is not None and _netloc(origin) != host.lower():
            raise ApiError(
                403,
                "pages of other sites may not use this server",
                code="origin_not_allowed",
            )

    def _owner(self, path: str, headers: dict[str, str]) -> str:
        """Number of the request's API key; empty if none is required."""
        if not self.settings.api_keys or path in OPEN_PATHS or path in panel_files():
            return ""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        found = [
            number
            for number, key in enumerate(self.settings.api_keys)
            if hmac.compare_digest(key.encode(), given.strip().encode("utf-8", "replace"))
        ]
        if scheme.lower() != "bearer" or not found:
            raise ApiError(
                401,
                "this server asks for an API key: send Authorization: Bearer KEY",
                code="invalid_api_key",
                kind="authentication_error",
                headers={"www-authenticate": "Bearer"},
            )
        return str(found[0])

    def _as_json(self, scope: Message, headers: dict[str, str]) -> Message:
        """Require a body to be JSON; return the request with a header that says so.

        A page may send any other type to any site without asking. So those of Ollama's clients,
        which name none or curl's own, are read as JSON only where no browser has sent them.
        """
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        if scope["method"] != "POST" or kind == "application/json" or kind.endswith("+json"):
            return scope
        if not scope["path"].startswith(OLLAMA) or is_of_browser(headers):
            raise ApiError(
                415,
                f"send JSON with the header Content-Type: application/json, got {kind or 'none'}",
                code="unsupported_media_type",
            )
        others = [pair for pair in scope["headers"] if pair[0].lower() != b"content-type"]
        return {**scope, "headers": [*others, (b"content-type", b"application/json")]}

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes:
        told = headers.get("content-length", "0")
        if told.isdecimal() and len(told) < 16 and int(told) > BODY_BYTES:
            raise _too_large()
        if self._stopped:
            raise stopping()
        body = asyncio.ensure_future(_read(receive))
        self._bodies.add(body)
        try:
            return await asyncio.wait_for(body, self.body_seconds)
        except asyncio.CancelledError:
            if self._stopped:
                raise stopping() from None
            raise
        except asyncio.TimeoutError:
            raise ApiError(
                408,
                f"the body did not come within {self.body_seconds:g} s",
                code="request_timeout",
                headers={"connection": "close"},
            ) from None
        finally:
            self._bodies.discard(body)


def is_of_browser(headers: dict[str, str]) -> bool:
    """True if a request may come from a page: any trace that browsers leave counts."""
    traces = {"origin", "referer", "cookie"} & headers.keys()
    names = any(name.startswith("sec-") for name in headers)
    return bool(traces) or names or headers.get("user-agent", "").startswith("Mozilla/")


class _LeftError(Exception):
    """The client left before its request was whole."""


def _headers(scope: Message) -> dict[str, str]:
    """Headers by name; the first of each counts.

    Raises:
        ApiError: if they are too long, or the host is given twice.
    """
    raw: list[tuple[bytes, bytes]] = scope["headers"]
    if sum(len(name) + len(value) for name, value in raw) > HEADER_BYTES:
        raise ApiError(431, f"the headers are longer than {HEADER_BYTES} bytes")
    found: dict[str, str] = {}
    for name, value in raw:
        found.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    if sum(name.lower() == b"host" for name, _ in raw) > 1:
        raise ApiError(400, "the host is named twice")
    return found


async def _read(receive: Receive) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _LeftError
        part = message.get("body", b"")
        size += len(part)
        if size > BODY_BYTES:
            raise _too_large()
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Replay the body that was read, then receive what follows."""
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def _too_large() -> ApiError:
    return ApiError(
        413,
        f"the body is longer than {BODY_BYTES} bytes",
        code="request_too_large",
        headers={"connection": "close"},
    )


def _name_of(host: str) -> str:
    """Host of a header without its port; empty if it cannot be read."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
