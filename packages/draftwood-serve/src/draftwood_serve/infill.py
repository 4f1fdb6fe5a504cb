"""The endpoint by which editors ask llama.cpp to fill in the middle."""

from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from draftwood.text import infill as gaps
from draftwood_serve.answering import begin, first, whole
from draftwood_serve.errors import bad_request
from draftwood_serve.formats import infill
from draftwood_serve.formats.answers import ended_by_errors
from draftwood_serve.jobs import UNLIMITED, TextRequest
from draftwood_serve.loaded import LoadedTarget
from draftwood_serve.mapping import seed_of, speculation
from draftwood_serve.schemas.infill import InfillBody
from draftwood_serve.schemas.sampling import read_options
from draftwood_serve.service import TextService
from draftwood_serve.stream import EventStream

LEAST_TO_WRITE = 64  # tokens that a text around a gap leaves free, where no length is given


def add_infill(app: FastAPI, service: TextService) -> None:
    """Serve `/infill`."""

    @app.post("/infill")
    async def fill(body: InfillBody, request: Request) -> Response:
        def wanted(target: LoadedTarget) -> TextRequest:
            return of_infill(body, target.context_length)

        named = body.model or None  # llama.vim sends an empty one where none is configured
        answer = await begin(service, request, named, wanted, "infill")
        most = most_tokens(body, answer.request.model.context_length)
        cut = most is not None and answer.job.prompt_tokens >= most
        if not body.stream:
            return await whole(answer, lambda: infill.whole(answer, body, cut))
        events = infill.pieces(answer, body, cut, await first(answer))
        return EventStream(ended_by_errors(events, answer.job), answer.request)


def of_infill(body: InfillBody, context: int | None) -> TextRequest:
    """Translate a request; greedy where it does not say otherwise.

    Args:
        context: most tokens of a text; what is farthest from the gap is left out beyond them.

    Raises:
        ApiError: for a trace, which the answer has no place for.
    """
    wanted = speculation(body.speculative)
    if wanted.trace:
        raise bad_request(
            "/infill tells no steps; leave speculative.trace out, or ask /v1/completions with a"
            " suffix",
            "speculative.trace",
        )
    length, most = length_of(body), most_tokens(body, context)
    files = [gaps.OtherFile(each.filename, each.text) for each in body.input_extra or ()]
    options: dict[str, Any] = {**read_options(body), "temperature": body.temperature or 0.0}
    if body.repeat_penalty is not None:
        options["repetition_penalty"] = body.repeat_penalty
    return TextRequest(
        [body.input_prefix + body.prompt],
        options,
        seed=seed_of(body.seed),
        max_tokens=length or UNLIMITED,
        raw=True,
        gap=gaps.Gap(body.input_suffix, files, most),
        prompt_field="input_prefix",
        speculation=wanted,
    )


def length_of(body: InfillBody) -> int | None:
    """Most tokens to write; None where the request does not say."""
    return None if body.n_predict is None or body.n_predict < 0 else max(1, body.n_predict)


def most_tokens(body: InfillBody, context: int | None) -> int | None:
    """Most tokens of a prompt, for whose answer room is left; None for no limit."""
    if context is None:
        return None
    return context - min(length_of(body) or LEAST_TO_WRITE, context // 2)
