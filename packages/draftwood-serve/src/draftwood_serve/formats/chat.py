"""Chat completions, whole and in chunks."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from draftwood_serve.formats.answers import AnswerTo, chat_logprobs
from draftwood_serve.schemas.chat import ChatBody
from draftwood_serve.schemas.common import StreamOptions
from draftwood_serve.texts import TextUpdate, ToldToken
from draftwood_serve.tool_calls import CallDelta, ContentDelta, ToolCall, ToolReader, read_calls

CHUNK = "chat.completion.chunk"


async def whole(answer: AnswerTo, body: ChatBody, calls: bool) -> dict[str, Any]:
    """Answer once all texts are written.

    Args:
        calls: whether it may hold calls of tools.
    """
    await answer.finish()
    choices = []
    for place, each in enumerate(answer.wholes):
        content, called = read_calls(each.text) if calls else (each.text, [])
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if called:
            message["content"] = content or None
            message["tool_calls"] = [_call(call) for call in called]
        choices.append(
            {
                "index": place,
                "message": message,
                "logprobs": _logprobs(answer, body, each.told),
                "finish_reason": _reason(each.finish_reason, any(call.is_whole for call in called)),
            }
        )
    told = {"choices": choices, "usage": answer.usage(), "metrics": answer.metrics()}
    return {**answer.head("chat.completion"), **told}


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _reason(reason: str | None, called: bool) -> str | None:
    return "tool_calls" if called and reason == "stop" else reason


class ChatChunks:
    """A chat as it is written.

    Args:
        answer: the answer to send.
        body: the request.
        calls: whether it may hold calls of tools.
    """

    def __init__(self, answer: AnswerTo, body: ChatBody, calls: bool) -> None:
        self.answer, self.body = answer, body
        self._readers = [ToolReader() if calls else None for _ in answer.wholes]
        self._begun: set[int] = set()

    def events(self, first: list[TextUpdate]) -> AsyncIterator[str]:
        """Stream one event per step for all texts; ``first`` came already."""
        wanted = self.body.stream_options or StreamOptions()
        return self.answer.chunks(first, CHUNK, wanted, self._choice)

    def _choice(self, update: TextUpdate) -> dict[str, Any] | None:
        """Choice of a chunk for an update; None where the update has nothing to send."""
        delta, called = self._delta(update)
        if update.choice not in self._begun:
            delta = {"role": "assistant", "content": "", **delta}
            self._begun.add(update.choice)
        if not (delta or update.told or update.finish_reason or update.traced):
            return None
        return {
            "index": update.choice,
            "delta": delta,
            "logprobs": _logprobs(self.answer, self.body, update.told),
            "finish_reason": _reason(update.finish_reason, called),
            **self.answer.step(update),
        }

    def _delta(self, update: TextUpdate) -> tuple[dict[str, Any], bool]:
        """Content and calls of an update, and whether there was a call so far."""
        reader = self._readers[update.choice]
        if reader is None:
            return ({"content": update.text} if update.text else {}), False
        read = reader.feed(update.text)
        if update.finish_reason is not None:
            read += reader.finish()
        content = "".join(each.text for each in read if isinstance(each, ContentDelta))
        calls = [_call_delta(each) for each in read if isinstance(each, CallDelta)]
        delta: dict[str, Any] = {"content": content} if content else {}
        if calls:
            delta["tool_calls"] = calls
        return delta, reader.calls > 0


def _call_delta(delta: CallDelta) -> dict[str, Any]:
    if delta.id is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}


def _logprobs(answer: AnswerTo, body: ChatBody, told: Sequence[ToldToken]) -> dict[str, Any] | None:
    if not body.logprobs:
        return None
    return {"content": chat_logprobs(told, answer.token_texts), "refusal": None}
