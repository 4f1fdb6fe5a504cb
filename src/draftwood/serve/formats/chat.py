"""Chat completions, whole and in chunks."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from draftwood.serve.formats.answers import AnswerTo, chat_logprobs, event
from draftwood.serve.schemas.chat import ChatBody
from draftwood.serve.schemas.common import StreamOptions
from draftwood.serve.texts import TextUpdate, ToldToken

CHUNK = "chat.completion.chunk"


async def whole(answer: AnswerTo, body: ChatBody) -> dict[str, Any]:
    """The answer once all texts are written."""
    await answer.finish()
    choices = [
        {
            "index": place,
            "message": {"role": "assistant", "content": each.text, "refusal": None},
            "logprobs": _logprobs(answer, body, each.told),
            "finish_reason": each.finish_reason,
        }
        for place, each in enumerate(answer.wholes)
    ]
    return {
        **_head(answer, "chat.completion"),
        "choices": choices,
        "usage": answer.usage(),
        "metrics": answer.metrics(),
    }


async def chunks(answer: AnswerTo, body: ChatBody, first: list[TextUpdate]) -> AsyncIterator[str]:
    """The answer as it is written: what a step brought for all texts at a time.

    Args:
        first: updates that were heard already.
    """
    wanted, begun, updates = body.stream_options or StreamOptions(), set[int](), first
    while updates:
        found = [_chunk(answer, body, wanted, each, begun) for each in updates]
        told = [each for each in found if each is not None]
        if answer.ended:
            yield answer.last_chunks(told, _head(answer, CHUNK), wanted)
            return
        if told:
            yield "".join(map(event, told))
        updates = await answer.updates()


def _chunk(
    answer: AnswerTo, body: ChatBody, wanted: StreamOptions, update: TextUpdate, begun: set[int]
) -> dict[str, Any] | None:
    """What an update tells; None where that is nothing."""
    delta: dict[str, Any] = {} if update.choice in begun else {"role": "assistant"}
    begun.add(update.choice)
    if update.text or delta:
        delta["content"] = update.text
    elif not update.told and not update.finish_reason:
        return None
    choice = {
        "index": update.choice,
        "delta": delta,
        "logprobs": _logprobs(answer, body, update.told),
        "finish_reason": update.finish_reason,
    }
    found = {**_head(answer, CHUNK), "choices": [choice]}
    if wanted.continuous_usage_stats:
        found["usage"] = answer.usage()
    elif wanted.include_usage:
        found["usage"] = None
    return found


def _head(answer: AnswerTo, kind: str) -> dict[str, Any]:
    return {
        "id": answer.name,
        "object": kind,
        "created": answer.created,
        "model": answer.model,
        "system_fingerprint": None,
    }


def _logprobs(answer: AnswerTo, body: ChatBody, told: Sequence[ToldToken]) -> dict[str, Any] | None:
    if not body.logprobs:
        return None
    return {"content": chat_logprobs(told, answer.token_texts), "refusal": None}
