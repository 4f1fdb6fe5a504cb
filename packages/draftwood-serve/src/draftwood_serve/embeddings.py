"""Endpoints that embed texts, between the steps of texts that are written."""

import asyncio
import base64
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from starlette.responses import Response

from draftwood_serve.answering import require_model
from draftwood_serve.errors import (
    ApiError,
    bad_request,
    json_response,
    no_retry,
    one_line,
    stopping,
)
from draftwood_serve.ollama import known_name
from draftwood_serve.schemas.embeddings import EmbeddingBody, OllamaEmbedBody
from draftwood_serve.service import ClientLeftError, TextService


def add_embeddings(app: FastAPI, service: TextService) -> None:
    """Serve `/v1/embeddings` and Ollama's `/api/embed`."""
    embedder = Embedder(service)

    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingBody, request: Request) -> Response:
        name = service.settings.names[0] if body.model is None else body.model
        require_model(service, name)
        given: Any = body.input
        texts = [given] if isinstance(given, str) or isinstance(given[0], int) else given
        task = await embedder.task(texts, body.dimensions, body.pooling)
        await embedder.run(task, request)
        data = [
            {"object": "embedding", "index": place, "embedding": _sent(each, body.encoding_format)}
            for place, each in enumerate(task.unit_vectors(body.dimensions))
        ]
        usage = {"prompt_tokens": task.tokens, "total_tokens": task.tokens}
        return json_response({"object": "list", "data": data, "model": name, "usage": usage})

    @app.post("/api/embed")
    async def ollama_embed(body: OllamaEmbedBody, request: Request) -> Response:
        since, _ = perf_counter(), known_name(service, body.model)
        texts = [body.input] if isinstance(body.input, str) else body.input
        task = await embedder.task(texts, body.dimensions, truncate=body.truncate)
        await embedder.run(task, request)
        told = {
            "model": body.model,
            "embeddings": [_sent(each) for each in task.unit_vectors(body.dimensions)],
            "total_duration": round(1e9 * (perf_counter() - since)),
            "load_duration": 0,
            "prompt_eval_count": task.tokens,
        }
        return json_response(told)


class Embedder:
    """Embeds texts of requests in the thread that runs the model.

    All requests together make at most one pass between two steps of texts.

    Args:
        service: whose model it is.
    """

    def __init__(self, service: TextService) -> None:
        self.service, self.waiting = service, 0
        self._turn = asyncio.Lock()

    async def task(
        self,
        texts: Sequence[Any],
        dimensions: int | None,
        pooling: str = "mean",
        truncate: bool = False,
    ) -> Any:
        """Read the texts of a request, as ``LanguageModel.embedding_task`` does.

        Raises:
            ApiError: for texts that are empty or too long, and more dimensions than there are.
        """
        lm = self.service.target.plain
        width = lm.model.hidden_size
        if dimensions is not None and dimensions > width:
            told = f"dimensions is at most {width}, the model's width, not {dimensions}"
            raise bad_request(told, "dimensions")
        try:
            return await asyncio.to_thread(lm.embedding_task, texts, pooling, truncate)
        except (TypeError, ValueError) as error:
            raise bad_request(one_line(error), "input") from error

    async def run(self, task: Any, request: Request) -> None:
        """Embed the texts.

        Raises:
            ApiError: for strange tokens, and where too many requests wait, the cache is full, it
                takes too long or the server stops.
            ClientLeftError: where nobody listens any more.
        """
        self._require_place()
        self.waiting += 1
        try:
            await self._steps(task, request)
        finally:
            self.waiting -= 1
            self.service.thread.call(lambda _: task.close())

    def _require_place(self) -> None:
        if self.service.stopping:
            raise stopping()
        most = self.service.settings.max_queue
        if self.waiting > most:
            told = f"{most} requests for embeddings wait already; try again in a second"
            kind = "rate_limit_error"
            raise ApiError(429, told, None, "rate_limit_exceeded", kind, {"retry-after": "1"})

    async def _steps(self, task: Any, request: Request) -> None:
        since, most = perf_counter(), self.service.settings.request_timeout
        while not task.done:
            if self.service.stopping:
                raise stopping()
            if perf_counter() - since > most:
                told = f"the answer took longer than {most:g} s"
                raise no_retry(504, told, "timeout", "server_error")
            if await request.is_disconnected():
                raise ClientLeftError
            async with self._turn:
                try:
                    await asyncio.wrap_future(self.service.thread.call(lambda _: task.step()))
                except ValueError as error:  # tokens that the model has not
                    raise bad_request(one_line(error), "input") from error
                except MemoryError as error:
                    told = f"there is no room for these texts now: {one_line(error)}"
                    headers = {"retry-after": "1"}
                    raise ApiError(
                        503, told, None, "cache_full", "server_error", headers
                    ) from error


def _sent(vector: np.ndarray, encoding: str = "float") -> Any:
    """A vector as JSON has it: numbers, or their bytes as float32 in base64."""
    if encoding == "float":
        return [float(f"{each:.9g}") for each in vector.tolist()]  # as many digits as float32 has
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
