"""Responses, whole and as events."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from draftwood.serve.formats.answers import AnswerTo, chat_logprobs, event
from draftwood.serve.schemas.responses import ResponsesBody
from draftwood.serve.texts import TextUpdate


@dataclass
class ResponseFormatter:
    """Tells an answer as a response with one message.

    Attributes:
        answer: what is told.
        body: what it answers.
    """

    answer: AnswerTo
    body: ResponsesBody
    item: str = field(default_factory=lambda: f"msg_{secrets.token_hex(12)}")
    _numbers: Any = field(default_factory=count)

    async def whole(self) -> dict[str, Any]:
        """The response once its text is written."""
        await self.answer.finish()
        return self.response()

    async def events(self, first: list[TextUpdate]) -> AsyncIterator[str]:
        """The response as it is written.

        Args:
            first: updates that were heard already.
        """
        begun = {"id": self.item, "type": "message", "role": "assistant", "content": []}
        told = self._event("response.created", response=self.response("in_progress"))
        told += self._event("response.in_progress", response=self.response("in_progress"))
        told += self._event(
            "response.output_item.added",
            output_index=0,
            item={**begun, "status": "in_progress"},
        )
        told += self._of_part("response.content_part.added", part=_part("", []))
        updates = first
        while updates:
            told += "".join(map(self._delta, updates))
            ended = self.answer.wholes[0].finish_reason is not None
            yield told + (self._last() if ended else "")
            told, updates = "", [] if ended else await self.answer.updates()

    def _delta(self, update: TextUpdate) -> str:
        if not update.text:
            return ""
        logprobs = self._logprobs(update)
        return self._of_part("response.output_text.delta", delta=update.text, logprobs=logprobs)

    def _last(self) -> str:
        text, logprobs = self.answer.wholes[0].text, self._logprobs(self.answer.wholes[0])
        response = self.response()
        told = self._of_part("response.output_text.done", text=text, logprobs=logprobs)
        told += self._of_part("response.content_part.done", part=_part(text, logprobs))
        told += self._event("response.output_item.done", output_index=0, item=response["output"][0])
        return told + self._event(f"response.{response['status']}", response=response)

    def _of_part(self, kind: str, **fields: Any) -> str:
        return self._event(kind, item_id=self.item, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> str:
        return event({"type": kind, "sequence_number": next(self._numbers), **fields}, kind)

    def _logprobs(self, of: Any) -> list[dict[str, Any]]:
        if self.body.top_logprobs is None:
            return []
        return chat_logprobs(of.told, self.answer.token_texts)

    def response(self, status: str | None = None) -> dict[str, Any]:
        """The response, whole unless another status is given."""
        answer, body = self.answer, self.body
        text = answer.wholes[0]
        ended = status is None
        status = status or ("incomplete" if text.finish_reason == "length" else "completed")
        message = {
            "id": self.item,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [_part(text.text, self._logprobs(text))],
        }
        return {
            "id": answer.name,
            "object": "response",
            "created_at": answer.created,
            "status": status,
            "error": None,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if status == "incomplete" else None
            ),
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": answer.model,
            "output": [message] if ended else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": self._usage() if ended else None,
            "metadata": {},
            "metrics": answer.metrics() if ended else None,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self.answer.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }


def _part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
