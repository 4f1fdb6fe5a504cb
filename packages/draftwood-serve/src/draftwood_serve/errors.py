"""Errors in OpenAI's format."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

OLLAMA = "/api/"
"""Beginning of the paths of Ollama's endpoints."""


class ApiError(Exception):
    """Error that is sent to a client.

    Args:
        status: of HTTP.
        message: for people; names the cure.
        param: the field that is wrong.
        code: for programs.
        kind: OpenAI's ``type`` of the error.
        headers: to be sent with it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.kind, self.headers = kind, dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        told = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": told}

    def response(self, path: str = "") -> Response:
        """Answer to a request for a path."""
        return json_response(self.body_for(path), self.status, self.headers)

    def body_for(self, path: str) -> dict[str, Any]:
        """Clients of Ollama's endpoints read a text."""
        return {"error": self.message} if path.startswith(OLLAMA) else self.body


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """400: the request is wrong and will be wrong again."""
    return ApiError(400, message, param, code)


def no_support(what: str) -> str:
    """Say that messages may not hold something, such as images."""
    return f"this server does not support {what}, its models read text alone; leave them out"


def unsupported(param: str, why: str = "") -> ApiError:
    """400: a field that others know and this server does not."""
    return bad_request(
        f"{param} is not supported by this server{why}; leave it out",
        param,
        "unsupported_parameter",
    )


def no_retry(status: int, message: str, code: str) -> ApiError:
    """Error of the server that clients must not retry by themselves."""
    headers = {"x-should-retry": "false"}
    return ApiError(status, message, code=code, kind="server_error", headers=headers)


def stopping() -> ApiError:
    """503: the server is about to end."""
    return ApiError(
        503, "the server is stopping; ask again later", None, "stopping", "server_error"
    )


def cache_full(error: MemoryError) -> ApiError:
    """503: there is no room; what runs now will leave some."""
    told = f"there is no room for these texts now: {one_line(error)}"
    return ApiError(503, told, None, "cache_full", "server_error", {"retry-after": "1"})


def broken(error: Exception) -> ApiError:
    """500: something failed that should not have; 503 where memory was lacking."""
    if isinstance(error, MemoryError):
        return cache_full(error)
    return no_retry(500, f"the text could not be written: {one_line(error)}", "internal_error")


def one_line(error: Exception) -> str:
    """Message of an error, in one line."""
    return " ".join(str(error).split())[:500] or type(error).__name__


def as_json(value: Any) -> str:
    """Write JSON in ASCII, so that half a character of a request can be sent back."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(as_json(value), status, dict(headers or {}), "application/json")
