"""Responses, whole and as events."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any, Literal

from draftwood_serve.errors import ApiError
from draftwood_serve.formats.answers import AnswerTo, chat_logprobs, event
from draftwood_serve.schemas.responses import NamedResponseTool, ResponsesBody, ResponseTool
from draftwood_serve.texts import TextUpdate, ToldToken
from draftwood_serve.thoughts import ThoughtDelta
from draftwood_serve.tool_calls import CallDelta

Status = Literal["in_progress", "completed", "incomplete"]


@dataclass
class ResponseItem:
    """A thought, a message or a call of an answer.

    Attributes:
        place: among the answer's items.
        call: its id and the function's name; None for others.
        is_thought: whether it is one.
        text: of the message or the thought, or the arguments of the call.
        told: tokens of the message, where their log-probabilities are wanted.
    """

    place: int
    call: tuple[str, str] | None = None
    is_thought: bool = False
    text: str = ""
    told: list[ToldToken] = field(default_factory=list)
    name: str = ""

    def __post_init__(self) -> None:
        kind = "rs" if self.is_thought else "msg" if self.call is None else "fc"
        self.name = f"{kind}_{secrets.token_hex(12)}"

    @property
    def is_message(self) -> bool:
        return self.call is None and not self.is_thought

    @property
    def kind(self) -> str:
        """Kind of its text, which events name."""
        return "reasoning_text" if self.is_thought else "output_text"

    def part(self, logprobs: list[dict[str, Any]], text: str | None = None) -> dict[str, Any]:
        """Its text as a part of a content."""
        told = {"type": self.kind, "text": self.text if text is None else text}
        return told if self.is_thought else {**told, "annotations": [], "logprobs": logprobs}

    def as_json(self, status: Status, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {"id": self.name, "status": status}
        if self.call is not None:
            call, name = self.call
            told = "" if status == "in_progress" else self.text
            return {
                **found,
                "type": "function_call",
                "call_id": call,
                "name": name,
                "arguments": told,
            }
        content = [] if status == "in_progress" else [self.part(logprobs)]
        if self.is_thought:
            return {**found, "type": "reasoning", "summary": [], "content": content}
        return {**found, "type": "message", "role": "assistant", "content": content}


def error_event(error: ApiError, number: int) -> str:
    """An error in the midst of so many events."""
    told = {"code": error.code, "message": error.message, "param": error.param}
    return event({"type": "error", "sequence_number": number, **told}, "error")


class ResponseFormatter:
    """Tells an answer as a response: a thought, messages and calls of functions.

    Args:
        answer: what is told.
        body: what it answers.
        calls: whether it may hold calls of functions.
    """

    def __init__(self, answer: AnswerTo, body: ResponsesBody, calls: bool) -> None:
        self.answer, self.body = answer, body
        self._reader = answer.reader(0, calls)
        self._items: list[ResponseItem] = []
        self._untold: list[ToldToken] = []  # until there is text to tell them with
        self._numbers = count()

    async def whole(self) -> dict[str, Any]:
        """The response once its text is written."""
        while updates := await self.answer.updates():
            for update in updates:
                self._read(update)
        status = self._status()
        self._close(status)
        return self._response(status)

    async def events(self, first: list[TextUpdate]) -> AsyncIterator[str]:
        """The response as it is written.

        Args:
            first: updates that were heard already.
        """
        begun = self._response("in_progress")
        told = self._event("response.created", response=begun)
        told += self._event("response.in_progress", response=begun)
        updates = first
        while updates:
            told += "".join(map(self._read, updates))
            ended = self.answer.ended
            yield told + (self._last() if ended else "")
            told, updates = "", [] if ended else await self.answer.updates()

    def error(self, error: ApiError) -> str:
        """An error in the midst of the events."""
        return error_event(error, next(self._numbers))

    def _read(self, update: TextUpdate) -> str:
        """Take an update; the events that tell it."""
        read = self._reader.feed(update.text, is_last=update.finish_reason is not None)
        self._untold += update.told
        begin = self._reader.content_from
        if begin is not None:  # tokens of a thought are told by no message
            self._untold = [each for each in self._untold if each.start >= begin]
        told = ""
        for each in read:
            if isinstance(each, CallDelta):
                told += self._called(each)
            elif isinstance(each, ThoughtDelta):
                told += self._thought(each.text)
            else:
                told += self._content(each.text)
        if self._items and self._items[-1].call is not None:
            self._untold.clear()
        if update.finish_reason is not None and not self._items:
            told += self._open(ResponseItem(0))
        return told

    def _thought(self, text: str) -> str:
        opened = "" if self._items else self._open(ResponseItem(0, is_thought=True))
        item = self._items[-1]
        item.text += text
        return opened + self._of_part("reasoning_text.delta", item, delta=text)

    def _content(self, text: str) -> str:
        opened = ""
        if not self._items or not self._items[-1].is_message:
            opened = self._open(ResponseItem(len(self._items)))
        item = self._items[-1]
        item.text += text
        logprobs = self._logprobs(self._take_untold(item))
        return opened + self._of_part("output_text.delta", item, delta=text, logprobs=logprobs)

    def _take_untold(self, message: ResponseItem) -> list[ToldToken]:
        """Give a message the tokens that were not told yet."""
        taken, self._untold = self._untold, []
        message.told += taken
        return taken

    def _is_blank(self, told: ToldToken) -> bool:
        return self.answer.token_texts.of(told.logprob.token)[0].isspace()

    def _called(self, delta: CallDelta) -> str:
        told = ""
        if delta.id is not None:
            # blanks before a call are the message's; no message tells what is the call's
            self._untold = list(takewhile(self._is_blank, self._untold))
            call = (delta.id, delta.name or "")
            told = self._open(ResponseItem(len(self._items), call))
        self._untold.clear()
        item = self._items[-1]
        item.text += delta.arguments
        if delta.arguments:
            told += self._of_item("function_call_arguments.delta", item, delta=delta.arguments)
        return told

    def _open(self, item: ResponseItem) -> str:
        """Begin an item, and end the one before it."""
        told = self._close("completed") if self._items else ""
        self._items.append(item)
        begun = item.as_json("in_progress", [])
        told += self._event("response.output_item.added", output_index=item.place, item=begun)
        if item.call is None:
            told += self._of_part("content_part.added", item, part=item.part([], ""))
        return told

    def _close(self, status: Status) -> str:
        item = self._items[-1]
        logprobs: list[dict[str, Any]] = []
        if item.is_message:
            self._take_untold(item)
            logprobs = self._logprobs(item.told)
        if item.call is None:
            part = item.part(logprobs)
            told = self._of_part(
                f"{item.kind}.done",
                item,
                **{name: part[name] for name in ("text", "logprobs") if name in part},
            )
            told += self._of_part("content_part.done", item, part=part)
        else:
            told = self._of_item(
                "function_call_arguments.done", item, name=item.call[1], arguments=item.text
            )
        whole = item.as_json(status, logprobs)
        return told + self._event("response.output_item.done", output_index=item.place, item=whole)

    def _last(self) -> str:
        status = self._status()
        told = self._close(status)
        return told + self._event(f"response.{status}", response=self._response(status))

    def _status(self) -> Status:
        cut = self.answer.wholes[0].finish_reason == "length"
        return "incomplete" if cut else "completed"

    def _of_part(self, kind: str, item: ResponseItem, **fields: Any) -> str:
        return self._of_item(kind, item, content_index=0, **fields)

    def _of_item(self, kind: str, item: ResponseItem, **fields: Any) -> str:
        place = {"item_id": item.name, "output_index": item.place}
        return self._event(f"response.{kind}", **place, **fields)

    def _event(self, kind: str, **fields: Any) -> str:
        return event({"type": kind, "sequence_number": next(self._numbers), **fields}, kind)

    def _logprobs(self, told: list[ToldToken]) -> list[dict[str, Any]]:
        if self.body.logprobs is None:
            return []
        return chat_logprobs(told, self.answer.token_texts)

    def _output(self, status: Status) -> list[dict[str, Any]]:
        if status == "in_progress":
            return []
        last = len(self._items) - 1
        return [
            each.as_json(status if each.place == last else "completed", self._logprobs(each.told))
            for each in self._items
        ]

    def _response(self, status: Status) -> dict[str, Any]:
        answer, body, ended = self.answer, self.body, status != "in_progress"
        choice = body.tool_choice
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        wanted = body.text.format if body.text is not None else None
        return {
            "id": answer.name,
            "object": "response",
            "created_at": answer.created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": answer.model,
            "output": self._output(status),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {
                "format": {"type": "text"}
                if wanted is None
                else wanted.model_dump(by_alias=True, exclude_none=True)
            },
            "tool_choice": choice.model_dump()
            if isinstance(choice, NamedResponseTool)
            else choice or "auto",
            "tools": [_tool(each) for each in body.tools or ()],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": self._usage() if ended else None,
            "metadata": body.metadata or {},
            "metrics": answer.metrics() if ended else None,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self.answer.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self.answer.thought_tokens},
            "total_tokens": usage["total_tokens"],
        }


def _tool(tool: ResponseTool) -> dict[str, Any]:
    """A tool as the response repeats it: a function's every field, of others those given."""
    if tool.type != "function":
        return tool.model_dump(exclude_unset=True)
    given = tool.model_dump()
    return {**given, "parameters": given["parameters"] or {}, "strict": bool(given["strict"])}
