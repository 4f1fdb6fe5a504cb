"""Steps that every endpoint takes from a request to its answer."""

from collections.abc import Callable
from typing import Any

from fastapi import Request
from starlette.responses import Response

from draftwood_serve.errors import ApiError, json_response
from draftwood_serve.formats.answers import AnswerTo
from draftwood_serve.served import ServedModel
from draftwood_serve.service import TextService, Wanted
from draftwood_serve.texts import TextUpdate


async def begin(
    service: TextService,
    request: Request,
    name: str | None,
    wanted: Wanted,
    word: str,
    keep_alive: float | None = None,
) -> AnswerTo:
    """Queue a request; returns the answer that is on its way.

    Args:
        name: of the model; None takes the server's first.
        word: kind of answer, of which its name is made.
        keep_alive: seconds that the model is to stay behind it; None says nothing.

    Raises:
        ApiError: as ``TextService.start``, and for a model that is not served.
    """
    model = model_named(service, name)
    request.state.model = model.name if name is None else name
    owner = request.state.owner
    opened = await service.start(model, wanted, owner, request.receive, keep_alive)
    request.state.job = opened.job
    return AnswerTo(opened, model.token_texts, request.state.model, word)


async def whole(answer: AnswerTo, make: Callable[[], Any]) -> Response:
    """Answer in one piece."""
    try:
        return json_response(await make())
    finally:
        answer.request.close()


async def first(answer: AnswerTo) -> list[TextUpdate]:
    """Wait for the first updates, so that an earlier error gets a status of its own."""
    try:
        return await answer.updates()
    except BaseException:
        answer.request.close()
        raise


def model_named(service: TextService, name: str | None) -> ServedModel:
    """A served model by its name; raises 404 where there is none."""
    try:
        return service.models.named(name)
    except KeyError:
        known = ", ".join(service.models.names)
        told = f"the model {name!r} is not served here; there is: {known}"
        raise ApiError(404, told, "model", "model_not_found") from None
