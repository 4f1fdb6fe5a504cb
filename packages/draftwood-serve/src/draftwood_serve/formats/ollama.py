"""Ollama's answers, whole and line by line."""

import json
import sys
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from draftwood_serve.errors import ApiError, as_json
from draftwood_serve.formats.answers import AnswerTo
from draftwood_serve.jobs import TextJob
from draftwood_serve.texts import TextUpdate
from draftwood_serve.thoughts import ThoughtDelta
from draftwood_serve.tool_calls import CallDelta, ContentDelta

Say = Callable[[str, str, list[Any]], dict[str, Any]]
"""The field that holds some text, some of a thought and some calls."""


def as_message(text: str, thought: str, calls: list[Any]) -> dict[str, Any]:
    """Text, thought and calls of a chat."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    message |= {"thinking": thought} if thought else {}
    return {"message": {**message, "tool_calls": calls} if calls else message}


def as_response(text: str, thought: str, calls: list[Any]) -> dict[str, Any]:
    """Text and thought of ``/api/generate``, which has no calls."""
    return {"response": text, **({"thinking": thought} if thought else {})}


class OllamaAnswer:
    """An answer on its way to a client of Ollama.

    Args:
        answer: the answer to send.
        say: how its text is sent.
        calls: whether it may hold calls of tools.
    """

    def __init__(self, answer: AnswerTo, say: Say, calls: bool) -> None:
        self.answer, self.say = answer, say
        self._reader = answer.reader(0, calls)
        self._called: list[tuple[str, str]] = []  # names and arguments so far
        self._told = 0  # calls

    async def whole(self) -> dict[str, Any]:
        """Answer once the text is written."""
        await self.answer.finish()
        text, thought = self._read(self.answer.wholes[0].text, final=True)
        return {**self.say(text, thought, self._calls()), **self._end()}

    async def lines(self, first: list[TextUpdate]) -> AsyncIterator[str]:
        """Stream one line for each step, and one at the end.

        Args:
            first: updates received already.
        """
        updates = first
        while updates:
            ended = self.answer.ended
            text, thought = self._read("".join(each.text for each in updates), final=ended)
            calls = self._calls()
            if text or thought or calls:
                yield line({**self._head(), **self.say(text, thought, calls), "done": False})
            if ended:
                yield line({**self.say("", "", []), **self._end()})
                return
            updates = await self.answer.updates()

    def _read(self, text: str, final: bool) -> tuple[str, str]:
        """Text outside of calls, and of the thought before it."""
        deltas = self._reader.feed(text, is_last=final)
        for each in deltas:
            if isinstance(each, CallDelta):
                name = self._called.pop() if each.id is None else (each.name or "", "")
                self._called.append((name[0], name[1] + each.arguments))
        thought = "".join(each.text for each in deltas if isinstance(each, ThoughtDelta))
        return "".join(each.text for each in deltas if isinstance(each, ContentDelta)), thought

    def _calls(self) -> list[Any]:
        """Calls that are whole and were not told yet; one that the text's end cut is none."""
        whole = self._reader.calls
        found, self._told = self._called[self._told : whole], whole
        return [{"function": {"name": name, "arguments": _arguments(told)}} for name, told in found]

    def _head(self) -> dict[str, Any]:
        return {"model": self.answer.model, "created_at": now()}

    def _end(self) -> dict[str, Any]:
        reason = self.answer.wholes[0].finish_reason
        written = self.answer.wholes[0].tokens
        durations = durations_of(self.answer.job, written)
        return {**self._head(), "done": True, "done_reason": reason, **durations}


def _arguments(told: str) -> Any:
    """Arguments of a whole call; none where they are no JSON all the same.

    The largest float stands for numbers beyond it, which JSON may hold.
    """
    try:
        return json.loads(told, parse_float=_finite)
    except (ValueError, RecursionError):
        return {}


def _finite(told: str) -> float:
    return max(-sys.float_info.max, min(float(told), sys.float_info.max))


def durations_of(job: TextJob, written: int) -> dict[str, int]:
    """Counts of tokens, and nanoseconds."""

    def nanoseconds(begin: float, end: float) -> int:
        return max(0, round(1e9 * (end - begin)))

    end = job.ended or job.first_token
    return {
        "total_duration": nanoseconds(job.arrived, end),
        "load_duration": round(1e9 * job.load_seconds),
        "prompt_eval_count": job.prompt_tokens,
        "prompt_eval_duration": nanoseconds(job.started, job.first_token),
        "eval_count": written,
        "eval_duration": nanoseconds(job.first_token, end),
    }


def now(more: float = 0.0) -> str:
    """The time so many seconds from now, in the form in which Ollama tells it."""
    then = datetime.now(timezone.utc) + timedelta(seconds=more)
    return then.isoformat().replace("+00:00", "Z")


def line(value: Any) -> str:
    return as_json(value) + "\n"


def error_line(error: ApiError) -> str:
    """An error in the midst of a stream."""
    return line({"error": error.message})
