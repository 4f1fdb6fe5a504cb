"""Endpoints that embed texts, between the steps of texts that are written."""

import asyncio
import base64
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from starlette.responses import Response

from draftwood.text.language_model import LanguageModel
from draftwood_serve.answering import model_named
from draftwood_serve.errors import (
    bad_request,
    cache_full,
    json_response,
    no_retry,
    one_line,
)
from draftwood_serve.jobs import SharedCache, blaming_the_request, require_room
from draftwood_serve.ollama import load_or_leave, named
from draftwood_serve.schemas.embeddings import (
    EmbeddingBody,
    OllamaEmbedBody,
    OllamaPromptBody,
)
from draftwood_serve.served import ServedModel
from draftwood_serve.service import OpenRequest, TextService


def add_embeddings(app: FastAPI, service: TextService) -> None:
    """Serve `/v1/embeddings` and Ollama's `/api/embed` and `/api/embeddings`."""
    embedder = Embedder(service)

    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingBody, request: Request) -> Response:
        model = model_named(service, body.model)
        request.state.model = name = model.name if body.model is None else body.model
        given: Any = body.input
        texts = [given] if isinstance(given, str) or isinstance(given[0], int) else given
        task, _ = await embedder.embed(model, request, texts, body.dimensions, body.pooling)
        found = await asyncio.to_thread(_sent, task, body.dimensions, body.encoding_format)
        data = [
            {"object": "embedding", "index": place, "embedding": each}
            for place, each in enumerate(found)
        ]
        usage = {"prompt_tokens": task.tokens, "total_tokens": task.tokens}
        told = {"object": "list", "data": data, "model": name, "usage": usage}
        return await asyncio.to_thread(json_response, told)  # millions of numbers, perhaps

    @app.post("/api/embed")
    async def ollama_embed(body: OllamaEmbedBody, request: Request) -> Response:
        since = perf_counter()
        request.state.model, model = named(service, body.model)
        texts = [body.input] if isinstance(body.input, str) else body.input
        how: Any = {"truncate": body.truncate, "keep_alive": body.keep_alive}
        task, load_seconds = await embedder.embed(model, request, texts, body.dimensions, **how)
        told = {
            "model": body.model,
            "embeddings": await asyncio.to_thread(task.numbers, body.dimensions),
            "total_duration": round(1e9 * (perf_counter() - since)),
            "load_duration": round(1e9 * load_seconds),
            "prompt_eval_count": task.tokens,
        }
        return await asyncio.to_thread(json_response, told)

    @app.post("/api/embeddings")
    async def older_embed(body: OllamaPromptBody, request: Request) -> Response:
        request.state.model, model = named(service, body.model)
        if not body.prompt:
            await load_or_leave(service, model, body.keep_alive, request)
            return json_response({"embedding": []})
        how: Any = {"truncate": True, "keep_alive": body.keep_alive}
        task, _ = await embedder.embed(model, request, [body.prompt], None, **how)
        return json_response({"embedding": task.numbers()[0]})


class Embedder:
    """Embeds texts of requests in the threads that run the models.

    Requests take turns: between two steps of texts there is at most one pass over texts of a usual
    size, and one over a part of a longer one.

    Args:
        service: whose models they are.
    """

    def __init__(self, service: TextService) -> None:
        self.service = service
        self._short, self._long = asyncio.Lock(), asyncio.Lock()

    async def embed(
        self,
        model: ServedModel,
        request: Request,
        texts: Sequence[Any],
        dimensions: int | None,
        pooling: str = "mean",
        truncate: bool = False,
        keep_alive: float | None = None,
    ) -> tuple[Any, float]:
        """Embed the texts of a request.

        Returns:
            The task that did it, closed, and seconds that the model took to load.

        Raises:
            ApiError: for texts that are empty or too long or of strange tokens, more dimensions
                than there are, and where too many requests wait, there is no room, it takes too
                long or the server stops.
            ClientLeftError: where nobody listens any more.
        """
        with await self.service.hold(model, request.receive, keep_alive) as held:
            lm = model.target.plain
            width = lm.model.hidden_size
            if dimensions is not None and dimensions > width:
                told = f"dimensions is at most {width}, the model's width, not {dimensions}"
                raise bad_request(told, "dimensions")
            make = partial(_task, lm, model.target, texts, pooling, truncate)
            task = await asyncio.to_thread(blaming_the_request, make, "input")
            held.prompt_tokens = task.tokens
            try:
                await self._embed(task, held)
            finally:
                model.running.call(lambda _: task.close())
            return task, held.load_seconds

    async def _embed(self, task: Any, held: OpenRequest) -> None:
        """Embed all texts; of short and of long ones only one each holds a cache at a time."""
        while not task.done:
            async with self._long if task.next_is_long else self._short:
                await self._step(task, held)
                while task.is_amid_text:
                    await self._step(task, held)

    async def _step(self, task: Any, held: OpenRequest) -> None:
        most, model = self.service.settings.request_timeout, held.model
        held.require_wanted()
        if perf_counter() - held.arrived > most:
            told = f"the answer took longer than {most:g} s"
            raise no_retry(504, told, "timeout")
        try:
            running = model.running
            step = running.call(lambda _: task.step(running.rows_beside(task.most_rows, task.past)))
            await asyncio.wrap_future(step)
        except ValueError as error:  # tokens that the model has not
            raise bad_request(one_line(error), "input") from error
        except MemoryError as error:
            raise cache_full(error) from error


def _task(
    lm: LanguageModel, cache: SharedCache, texts: Sequence[Any], pooling: str, truncate: bool
) -> Any:
    """Begin to embed texts, each of which the cache can hold alone.

    Args:
        truncate: cut longer ones, which are refused otherwise.
    """
    several = [lm.encode(each, raw=True) if isinstance(each, str) else each for each in texts]
    if truncate:
        several = [each[: cache.context_length] for each in several]
    for each in several:
        require_room(len(each), cache, "input", answer=0)
    return lm.embedding_task(several, pooling)


def _sent(task: Any, dimensions: int | None, encoding: str) -> list[Any]:
    """Vectors as JSON has them: numbers, or their bytes as float32 in base64."""
    if encoding == "float":
        return task.numbers(dimensions)
    vectors: np.ndarray = task.unit_vectors(dimensions)
    return [base64.b64encode(each.astype("<f4").tobytes()).decode() for each in vectors]
