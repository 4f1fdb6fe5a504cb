"""Chat completions, whole and in chunks."""

from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from typing import Any

from draftwood_serve.formats.answers import AnswerTo, chat_logprobs
from draftwood_serve.schemas.chat import ChatBody
from draftwood_serve.schemas.common import StreamOptions
from draftwood_serve.texts import TextUpdate, ToldToken
from draftwood_serve.thoughts import Delta, read_answer
from draftwood_serve.tool_calls import CallDelta, ContentDelta, ToolCall

CHUNK = "chat.completion.chunk"


async def whole(answer: AnswerTo, body: ChatBody, calls: bool) -> dict[str, Any]:
    """Answer once all texts are written.

    Args:
        calls: whether it may hold calls of tools.
    """
    await answer.finish()
    choices = []
    for place, each in enumerate(answer.wholes):
        thought, content, called = read_answer(answer.reader(place, calls), each.text)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if thought:
            message["reasoning_content"] = thought
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
        self._readers = [answer.reader(n, calls) for n in range(len(answer.wholes))]
        self._begun: set[int] = set()

    def events(self, first: list[TextUpdate]) -> AsyncIterator[str]:
        """Stream the events of each step of all texts; ``first`` came already."""
        wanted = self.body.stream_options or StreamOptions()
        return self.answer.chunks(first, CHUNK, wanted, self._choices)

    def _choices(self, update: TextUpdate) -> list[dict[str, Any]]:
        """Choices of an update's chunks; the last one tells what is more than text and calls."""
        deltas, called = self._deltas(update)
        if update.choice not in self._begun:
            self._begun.add(update.choice)
            content = "" if self._readers[update.choice].says_all else None
            first = deltas[0] if deltas else {}
            deltas[:1] = [{"role": "assistant", "content": content, **first}]
        elif not deltas and (update.told or update.finish_reason or update.traced):
            deltas = [{}]
        plain = {"index": update.choice, "logprobs": None, "finish_reason": None}
        choices = [{**plain, "delta": delta} for delta in deltas]
        if choices:
            choices[-1] |= {
                "logprobs": _logprobs(self.answer, self.body, update.told),
                "finish_reason": _reason(update.finish_reason, called),
                **self.answer.step(update),
            }
        return choices

    def _deltas(self, update: TextUpdate) -> tuple[list[dict[str, Any]], bool]:
        """Thought, content and calls of an update in order, and whether there was a call so far.

        Clients read one call of a chunk, and one piece of it.
        """
        reader = self._readers[update.choice]
        read = reader.feed(update.text, is_last=update.finish_reason is not None)
        pieces = groupby(read, lambda each: getattr(each, "index", type(each)))
        return [_delta(list(piece)) for _, piece in pieces], reader.calls > 0


def _delta(piece: Sequence[Delta]) -> dict[str, Any]:
    """More of the thought, of the content, or of one call."""
    first = piece[0]
    if not isinstance(first, CallDelta):
        name = "content" if isinstance(first, ContentDelta) else "reasoning_content"
        return {name: "".join(each.text for each in piece if not isinstance(each, CallDelta))}
    arguments = "".join(each.arguments for each in piece if isinstance(each, CallDelta))
    call: dict[str, Any] = {"index": first.index, "function": {"arguments": arguments}}
    if first.id is not None:
        call |= {"id": first.id, "type": "function"}
        call["function"]["name"] = first.name
    return {"tool_calls": [call]}


def _logprobs(answer: AnswerTo, body: ChatBody, told: Sequence[ToldToken]) -> dict[str, Any] | None:
    if not body.logprobs:
        return None
    return {"content": chat_logprobs(told, answer.token_texts), "refusal": None}
