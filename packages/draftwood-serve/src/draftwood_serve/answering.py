"""Steps that every endpoint takes from a request to its answer."""

from collections.abc import Callable
from typing import Any

from fastapi import Request
from starlette.responses import Response

from draftwood_serve.errors import ApiError, json_response
from draftwood_serve.formats.answers import AnswerTo
from draftwood_serve.jobs import TextRequest
from draftwood_serve.service import TextService
from draftwood_serve.texts import TextUpdate


async def begin(
    service: TextService, request: Request, name: str | None, wanted: TextRequest, word: str
) -> AnswerTo:
    """Queue a request; returns the answer that is on its way.

    Args:
        name: of the model; None takes the server's.
        word: kind of answer, of which its name is made.

    Raises:
        ApiError: as ``TextService.start``, and for a model that is not served.
    """
    model = service.settings.names[0] if name is None else name
    require_model(service, model)
    opened = await service.start(wanted, request.state.owner, request.receive)
    return AnswerTo(opened, service.token_texts, model, word)


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


def require_model(service: TextService, name: str) -> None:
    """Raise 404 for a model that is not served."""
    if name not in service.settings.names:
        known = ", ".join(service.settings.names)
        raise ApiError(
            404,
            f"the model {name!r} is not served here; there is: {known}",
            "model",
            "model_not_found",
        )
