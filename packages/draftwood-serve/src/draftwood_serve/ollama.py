"""Ollama's endpoints, for clients that speak no other."""

import json
import math
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

import draftwood
from draftwood.text import infill
from draftwood_serve.answering import begin, first, whole
from draftwood_serve.errors import ApiError, bad_request, json_response, no_support, unsupported
from draftwood_serve.formats.answers import ended_by
from draftwood_serve.formats.ollama import (
    OllamaAnswer,
    Say,
    as_message,
    as_response,
    error_line,
    now,
)
from draftwood_serve.jobs import TextRequest
from draftwood_serve.mapping import ANY_OBJECT, constraints_of, seed_of
from draftwood_serve.schemas.ollama import (
    OllamaBody,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaMessage,
    OllamaShowBody,
)
from draftwood_serve.served import ServedModel
from draftwood_serve.service import TextService
from draftwood_serve.stream import LINES, EventStream

LATEST = ":latest"
"""Tag of a model that has no other."""
NEVER = "9999-12-31T23:59:59Z"
"""When a model leaves the memory that stays."""


def add_ollama(app: FastAPI, service: TextService) -> None:
    """Serve what Ollama's clients ask for."""

    async def answered(
        body: OllamaBody, request: Request, wanted: TextRequest, say: Say
    ) -> Response:
        name = named(service, body.model)[0]
        answer = await begin(service, request, name, wanted, "ollama", body.keep_alive)
        answer.model = body.model
        told = OllamaAnswer(answer, say, wanted.calls)
        if body.stream is False:
            return await whole(answer, told.whole)
        lines = told.lines(await first(answer))
        return EventStream(ended_by(lines, answer.job, error_line), answer.request, LINES)

    async def loaded(body: OllamaBody, request: Request, say: Say) -> Response:
        """Answer a request without a prompt, which asks for the model to be loaded, or to leave."""
        request.state.model, model = named(service, body.model)
        await load_or_leave(service, model, body.keep_alive, request)
        head = {"model": body.model, "created_at": now()}
        reason = "unload" if body.keep_alive == 0 else "load"
        return json_response({**head, **say("", "", []), "done": True, "done_reason": reason})

    @app.post("/api/chat")
    async def chat(body: OllamaChatBody, request: Request) -> Response:
        if not body.messages:
            return await loaded(body, request, as_message)
        return await answered(body, request, of_chat(body), as_message)

    @app.post("/api/generate")
    async def generate(body: OllamaGenerateBody, request: Request) -> Response:
        if not body.prompt and not body.suffix:
            return await loaded(body, request, as_response)
        return await answered(body, request, of_generate(body), as_response)

    _add_facts(app, service)


def _add_facts(app: FastAPI, service: TextService) -> None:
    started = now()

    def cards(models: Iterable[ServedModel]) -> list[tuple[dict[str, Any], ServedModel]]:
        return [
            ({**card(model, name), "modified_at": started}, model)
            for model in models
            for name in model.settings.names
        ]

    @app.get("/api/tags")
    async def tags() -> Response:
        return json_response({"models": [found for found, _ in cards(service.models.all)]})

    @app.get("/api/ps")
    async def running() -> Response:
        found = [
            {
                **found,
                "expires_at": NEVER if model.keep == math.inf else now(model.left),
                "size_vram": 0,
                "context_length": model.context_length,
            }
            for found, model in cards(service.models.loaded)
        ]
        return json_response({"models": found})

    @app.get("/api/version")
    async def version() -> Response:
        return json_response({"version": draftwood.__version__})

    @app.post("/api/show")
    async def show(body: OllamaShowBody) -> Response:
        return json_response(description(*named(service, body.model or body.name)))


async def load_or_leave(
    service: TextService, model: ServedModel, keep_alive: float | None, request: Request
) -> None:
    """Load a model that is to stay, or let it leave as soon as nothing runs.

    Raises:
        ApiError: as ``TextService.hold``, and where it may not leave.
    """
    if keep_alive != 0:
        with await service.hold(model, request.receive, keep_alive):
            pass
    elif not model.settings.may_leave:
        told = f"{model.name!r} stays in memory, as this server learns or runs several processes"
        raise bad_request(f"{told}; leave keep_alive out", "keep_alive")
    else:
        service.models.keep(model, 0.0)
        await service.models.expire(model)


def named(service: TextService, name: str) -> tuple[str, ServedModel]:
    """A served name, with the tag that Ollama's clients add or without, and its model.

    Raises:
        ApiError: where there is none.
    """
    for each in (name, name.removesuffix(LATEST), name + LATEST):
        if each in service.models.names:
            return each, service.models.named(each)
    known = ", ".join(service.models.names)
    raise ApiError(404, f"model '{name}' not found; there is: {known}", "model", "model_not_found")


def of_chat(body: OllamaChatBody) -> TextRequest:
    """Translate a conversation."""
    for message in body.messages:
        _require_no_images(message.images)
    tools = [each.model_dump() for each in body.tools or ()]
    return TextRequest(
        [[_message(each, place) for place, each in enumerate(body.messages)]],
        **_options(body),
        **constraints_of(_schema(body), tools, format_field="format"),
    )


def of_generate(body: OllamaGenerateBody) -> TextRequest:
    """Translate a prompt.

    Raises:
        ApiError: for fields that this server has not, or that do not go together.
    """
    if body.template or body.context:
        raise unsupported("template" if body.template else "context")
    if body.system and body.raw:  # in Ollama's words
        raise bad_request("raw mode does not support template, system, or context", "system")
    if body.think and (body.raw or body.suffix):
        told = "raw mode has no thoughts" if body.raw else "suffix goes without thoughts"
        raise bad_request(f"{told}; leave think out", "think")
    if body.system and body.suffix:
        raise bad_request("suffix goes without system; leave one of them out", "system")
    constraints = constraints_of(_schema(body), [], format_field="format")
    own = {**_options(body), **constraints, "prompt_field": "prompt"}
    if body.suffix:
        return TextRequest([body.prompt], raw=True, gap=infill.Gap(body.suffix), **own)
    prompt: Any = body.prompt
    if body.system:
        prompt = [{"role": "system", "content": body.system}]
        prompt += [{"role": "user", "content": body.prompt}]
    return TextRequest([prompt], raw=body.raw, **own)


def _options(body: OllamaBody) -> dict[str, Any]:
    _require_no_images(body.images)
    options = body.options
    return {
        "options": options.as_text_options(),
        "seed": seed_of(options.seed),
        "max_tokens": options.num_predict if options.num_predict > 0 else None,
        "thinks": body.think,
        "must_think": bool(body.think),
    }


def _schema(body: OllamaBody) -> dict[str, Any] | None:
    if body.format == "json":
        return ANY_OBJECT
    return body.format if isinstance(body.format, dict) else None


def _require_no_images(images: list[Any] | None) -> None:
    if images:
        raise bad_request(no_support("images"), "images", "unsupported_parameter")


def _message(message: OllamaMessage, place: int) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.thinking:
        found["thinking"] = message.thinking
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": f"call_{place}_{number}",
                "type": "function",
                "function": {
                    "name": each.function.name,
                    "arguments": json.dumps(each.function.arguments),
                },
            }
            for number, each in enumerate(message.tool_calls)
        ]
    return found


def card(model: ServedModel, name: str) -> dict[str, Any]:
    """The model as lists have it; its digest is that of its name, its size 0 until it is loaded."""
    tagged = name if ":" in name else name + LATEST
    return {
        "name": tagged,
        "model": tagged,
        "size": model.weight_bytes,
        "digest": sha256(model.settings.model.encode()).hexdigest(),
        "details": details(model),
    }


def details(model: ServedModel) -> dict[str, Any]:
    """Form of the weights."""
    stored = "" if model.facts is None else model.facts.products
    return {"format": "draftwood", "quantization_level": stored}


def description(name: str, model: ServedModel) -> dict[str, Any]:
    """The model as `/api/show` has it: less of one that was never loaded."""
    told = {"modelfile": f"FROM {name}", "parameters": "", "details": details(model)}
    known: dict[str, Any] = {"general.architecture": "draftwood"}
    if model.context_length is not None:
        known["draftwood.context_length"] = model.context_length
    facts = model.facts
    if facts is None:
        return {**told, "template": "", "model_info": known, "capabilities": ["completion"]}
    abilities = ["completion", *(["tools"] if facts.template else [])]
    abilities += ["insert"] if facts.fills_gaps else []
    abilities += ["thinking"] if facts.thinks else []
    return {
        **told,
        "template": facts.template if isinstance(facts.template, str) else "",
        "model_info": {
            **known,
            "draftwood.embedding_length": facts.hidden_size,
            "draftwood.block_count": facts.layers,
        },
        "capabilities": abilities,
    }
