"""HTTP endpoints."""

import re
import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

import draftwood
from draftwood_serve.access_log import LEFT
from draftwood_serve.answering import begin, first, model_named, whole
from draftwood_serve.embeddings import add_embeddings
from draftwood_serve.errors import ApiError, broken, json_response, one_line, stopping
from draftwood_serve.formats import chat, completions
from draftwood_serve.formats.answers import DONE, ended_by, ended_by_errors
from draftwood_serve.formats.responses import ResponseFormatter
from draftwood_serve.infill import add_infill
from draftwood_serve.mapping import of_chat, of_completion, of_responses
from draftwood_serve.ollama import add_ollama
from draftwood_serve.page import add_page
from draftwood_serve.schemas.chat import ChatBody
from draftwood_serve.schemas.completions import CompletionBody
from draftwood_serve.schemas.responses import ResponsesBody
from draftwood_serve.service import ClientLeftError, TextService
from draftwood_serve.stream import EventStream

ENDPOINTS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request is at fault."},
    429: {"description": "Too many requests wait."},
}


def make_app(service: TextService) -> FastAPI:
    """Make the endpoints of a service that has loaded its model; ``Guard`` wraps them."""
    app = FastAPI(title="draftwood", version=draftwood.__version__, docs_url=None, redoc_url=None)
    _add_errors(app)
    _add_texts(app, service)
    add_embeddings(app, service)
    add_infill(app, service)
    add_ollama(app, service)
    add_page(app, service)
    created = int(time.time())

    def card(name: str) -> dict[str, Any]:
        model = model_named(service, name)
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "draftwood",
            "max_model_len": model.context_length,
            "loaded": model.is_loaded,
        }

    @app.get("/v1/models")
    async def models() -> Response:
        data = [card(name) for name in service.models.names]
        return json_response({"object": "list", "data": data})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        return json_response(card(name))

    @app.get("/health")
    async def health() -> Response:
        if service.stopping:
            raise stopping()
        for model in service.models.all:
            if model.is_broken:
                raise broken(RuntimeError(f"the thread that runs {model.name} has ended"))
        return json_response({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.models.families.page(), media_type="text/plain; version=0.0.4")

    return app


def _add_texts(app: FastAPI, service: TextService) -> None:
    @app.post("/v1/chat/completions", responses=ENDPOINTS)
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        wanted = of_chat(body)
        answer = await begin(service, request, body.model, wanted, "chatcmpl")
        if not body.stream:
            return await whole(answer, lambda: chat.whole(answer, body, wanted.calls))
        events = chat.ChatChunks(answer, body, wanted.calls).events(await first(answer))
        return EventStream(ended_by_errors(events, answer.job, DONE), answer.request)

    @app.post("/v1/completions", responses=ENDPOINTS)
    async def text_completions(body: CompletionBody, request: Request) -> Response:
        answer = await begin(service, request, body.model, of_completion(body), "cmpl")
        if not body.stream:
            return await whole(answer, lambda: completions.whole(answer, body))
        chunks = completions.chunks(answer, body, await first(answer))
        events = ended_by_errors(chunks, answer.job, DONE)
        return EventStream(events, answer.request)

    @app.post("/v1/responses", responses=ENDPOINTS)
    async def responses(body: ResponsesBody, request: Request) -> Response:
        wanted = of_responses(body)
        answer = await begin(service, request, body.model, wanted, "resp")
        formatter = ResponseFormatter(answer, body, wanted.calls)
        if not body.stream:
            return await whole(answer, formatter.whole)
        events = formatter.events(await first(answer))
        return EventStream(ended_by(events, answer.job, formatter.error), answer.request)


def _add_errors(app: FastAPI) -> None:
    def answered(request: Request, error: ApiError) -> Response:
        request.state.error = error.code  # for the log
        return error.response(request.url.path)

    @app.exception_handler(ApiError)
    async def told(request: Request, error: ApiError) -> Response:
        return answered(request, error)

    @app.exception_handler(ClientLeftError)
    async def left(request: Request, error: ClientLeftError) -> Response:
        return Response(status_code=LEFT)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return answered(request, _of_validation(error))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == 400:  # FastAPI's, of bytes and numbers that no JSON has
            return answered(request, _no_object())
        told = str(error.detail)
        if error.status_code in (404, 405):
            told = f"there is no {request.method} {request.url.path}"
        if "Allow" in headers:  # 405
            told += f"; send {headers['Allow']}"
        return answered(request, ApiError(error.status_code, told, headers=headers))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        return answered(request, broken(error))


TELLING = ("unsupported_parameter", "extra_forbidden", "too_long", "too_short", "string_too_short")
"""Kinds of errors that say more than that a value has none of several forms."""
NO_OBJECT = ("missing", "model_attributes_type")
"""Kinds of errors of a body that is empty, and of one that is a list, a text or a number."""


def _of_validation(error: RequestValidationError) -> ApiError:
    """Most specific error of a validation, in one line that names the field.

    Of several forms that a value may have the one is meant which is read deepest, or else one whose
    ``type`` the value has.
    """
    errors = error.errors()
    others = [
        e["loc"][:-1] for e in errors if e["type"] == "literal_error" and e["loc"][-1] == "type"
    ]
    deepest = max(errors, key=lambda e: (len(e["loc"]), e["loc"][:-1] not in others))
    first = next((each for each in errors if each["type"] in TELLING), deepest)
    parts = [part for part in first["loc"] if _is_field(part)]
    place = [  # a kind and its field may be called alike
        str(part)
        for at, part in enumerate(parts)
        if isinstance(part, int) or part not in parts[at - 1 : at]
    ]
    if first["type"] == "extra_forbidden":
        place = [*place[:-1], str(first["loc"][-1])] if place else [str(first["loc"][-1])]
    param = ".".join(place)[:200] or None
    if first["type"] == "unsupported_parameter":
        context: dict[str, Any] = first.get("ctx") or {}
        return ApiError(400, str(first["msg"]), context.get("name", param), "unsupported_parameter")
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"there is no field {param}", param, "unknown_parameter")
    if first["type"] == "json_invalid" or (param is None and first["type"] in NO_OBJECT):
        return _no_object()
    what = "the body" if param is None else param
    return ApiError(400, f"{what}: {one_line(ValueError(first['msg']))}", param, "invalid_value")


def _no_object() -> ApiError:
    return ApiError(400, "the body is no JSON object; send one", None, "invalid_value")


def _is_field(part: str | int) -> bool:
    """True if a part of an error's location is a field or an index, not a kind of value."""
    if isinstance(part, int):
        return True
    return part not in ("body", "bool", "str") and re.fullmatch("[a-z][a-z0-9_]*", part) is not None
