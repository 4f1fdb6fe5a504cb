"""Parts that answers of all endpoints share."""

import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwood_serve.errors import ApiError, as_json, broken
from draftwood_serve.formats.steps import StepTeller
from draftwood_serve.jobs import TextJob
from draftwood_serve.metrics import block
from draftwood_serve.schemas.common import StreamOptions
from draftwood_serve.service import ClientLeftError, OpenRequest
from draftwood_serve.texts import TextUpdate, ToldToken, TracedStep
from draftwood_serve.thoughts import AnswerReader, ThoughtCounter
from draftwood_serve.token_texts import TokenTexts

LEAST_LOGPROB = -9999.0  # for minus infinity, which JSON cannot hold
DONE = "data: [DONE]\n\n"
BUGS = logging.getLogger("uvicorn.error")
"""Takes errors that should not have been, where those of whole answers go."""


@dataclass
class WholeText:
    """Text of a request, assembled from its updates."""

    text: str = ""
    told: list[ToldToken] = field(default_factory=list)
    steps: list[TracedStep] = field(default_factory=list)
    tokens: int = 0
    finish_reason: str | None = None

    def add(self, update: TextUpdate) -> None:
        self.text += update.text
        self.told += update.told
        if update.traced is not None:
            self.steps.append(update.traced)
        self.tokens = update.tokens
        self.finish_reason = update.finish_reason


@dataclass
class AnswerTo:
    """An answer on its way to a client.

    Attributes:
        request: whose texts it sends.
        token_texts: of the model.
        model: name that the answer carries.
        name: of the answer, made of a word of its kind.
        wholes: its texts so far.
    """

    request: OpenRequest
    token_texts: TokenTexts
    model: str
    name: str
    created: int = field(default_factory=lambda: int(time.time()))
    wholes: list[WholeText] = field(default_factory=list)
    _tellers: dict[int, StepTeller] = field(default_factory=dict)  # of texts in chunks
    _thoughts: dict[int, ThoughtCounter] = field(default_factory=dict)  # of texts that may have any

    def __post_init__(self) -> None:
        self.name = f"{self.name}-{secrets.token_hex(12)}"
        choices = self.job.choices
        self.wholes = [WholeText() for _ in choices]
        for number, each in enumerate(choices):
            if each.thought is not None:
                self._thoughts[number] = ThoughtCounter(each.builder.without_stops(), each.thought)

    @property
    def job(self) -> TextJob:
        return self.request.job

    async def updates(self) -> list[TextUpdate]:
        """Wait for updates since the last call; empty at the end."""
        found = await self.request.updates()
        for each in found:
            self.wholes[each.choice].add(each)
            if each.choice in self._thoughts:
                tokens = self.job.choices[each.choice].builder.tokens
                self._thoughts[each.choice].count(tokens[: each.tokens])
        return found

    def reader(self, choice: int, calls: bool = False) -> AnswerReader:
        """Reader of a text as it comes.

        Args:
            calls: whether it may hold calls of tools.
        """
        return AnswerReader(calls, self.job.choices[choice].thought)

    async def finish(self) -> None:
        """Wait for the whole of all texts."""
        while await self.updates():
            pass

    @property
    def thought_tokens(self) -> int:
        """Tokens of thoughts, among those written."""
        return sum(each.tokens for each in self._thoughts.values())

    def usage(self) -> dict[str, Any]:
        written = sum(each.tokens for each in self.wholes)
        details: dict[str, int] = {}
        if self._thoughts:
            details["reasoning_tokens"] = self.thought_tokens
        if self.job.predicted is not None:
            given, followed = self.job.predicted
            accepted = min(followed, written)
            details["accepted_prediction_tokens"] = accepted
            details["rejected_prediction_tokens"] = given - accepted
        return {
            "prompt_tokens": self.job.prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self.job.prompt_tokens + written,
            "prompt_tokens_details": {"cached_tokens": self.job.cached_tokens},
            **({"completion_tokens_details": details} if details else {}),
        }

    def metrics(self) -> dict[str, Any]:
        found = block(self.job)
        if self.job.speculation.trace == "tree" and not self._tellers:
            told = [self._teller(n).tell_all(each.steps) for n, each in enumerate(self.wholes)]
            found["speculative_decoding"]["per_step_trees"] = told[0] if len(told) == 1 else told
        if self.job.speculation.trace and self.job.choices[0].details is not None:
            found["details"] = [each.details for each in self.job.choices]
        return found

    def step(self, update: TextUpdate) -> dict[str, Any]:
        """Fields with an update's step for its chunk; empty unless trees are requested."""
        if update.traced is None:
            return {}
        if update.choice not in self._tellers:
            self._tellers[update.choice] = self._teller(update.choice)
        told = self._tellers[update.choice].tell(
            update.traced, final=update.finish_reason is not None
        )
        return {"step": told}

    def _teller(self, choice: int) -> StepTeller:
        job = self.job
        return StepTeller(self.token_texts, job.method, job.started, job.choices[choice].builder)

    @property
    def ended(self) -> bool:
        return all(each.finish_reason for each in self.wholes)

    def head(self, kind: str) -> dict[str, Any]:
        """Fields that OpenAI's answers of a kind and their chunks begin with."""
        return {
            "id": self.name,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }

    async def chunks(
        self,
        first: list[TextUpdate],
        kind: str,
        wanted: StreamOptions,
        choices_of: Callable[[TextUpdate], list[dict[str, Any]]],
    ) -> AsyncIterator[str]:
        """Stream the events of each step of all texts.

        Args:
            first: updates received already.
            kind: of the chunks.
            choices_of: what an update sends, each in a chunk of its own.
        """
        head, updates = self.head(kind), first
        while updates:
            choices = [choice for each in updates for choice in choices_of(each)]
            told = [{**head, "choices": [each], **self._so_far(wanted)} for each in choices]
            if self.ended:
                yield self._last_chunks(told, head, wanted)
                return
            if told:
                yield "".join(map(event, told))
            updates = await self.updates()

    def _so_far(self, wanted: StreamOptions) -> dict[str, Any]:
        """The usage as a chunk tells it."""
        if wanted.continuous_usage_stats:
            return {"usage": self.usage()}
        return {"usage": None} if wanted.include_usage else {}

    def _last_chunks(
        self, chunks: list[dict[str, Any]], head: dict[str, Any], wanted: StreamOptions
    ) -> str:
        """The last chunks of a stream: with the metrics, and the usage where it is wanted.

        Clients that did not ask for the usage may stumble over a chunk without choices.
        """
        if wanted.include_usage or not chunks:
            chunks = [*chunks, {**head, "choices": []}]
            if wanted.include_usage:
                chunks[-1]["usage"] = self.usage()
        chunks[-1]["metrics"] = self.metrics()
        return "".join(map(event, chunks)) + DONE


def event(value: Any, name: str | None = None) -> str:
    """A server-sent event."""
    return f"{'' if name is None else f'event: {name}' + chr(10)}data: {as_json(value)}\n\n"


async def ended_by_errors(
    events: AsyncIterator[str], job: TextJob, last: str = ""
) -> AsyncIterator[str]:
    """Yield the events; send an error in their midst as one more event, then ``last``."""
    async for each in ended_by(events, job, lambda error: event(error.body) + last):
        yield each


async def ended_by(
    events: AsyncIterator[str], job: TextJob, tell: Callable[[ApiError], str]
) -> AsyncIterator[str]:
    """Yield the events; tell an error in their midst, and note it in the job."""
    try:
        async for each in events:
            yield each
    except ClientLeftError:
        return
    except Exception as error:
        told = error if isinstance(error, ApiError) else broken(error)
        if told is not error:  # a bug
            BUGS.error("a stream broke off", exc_info=error)
        job.error = told.code
        yield tell(told)


def number(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def chat_logprobs(told: Sequence[ToldToken], texts: TokenTexts) -> list[dict[str, Any]]:
    """Log-probabilities in the format of chats and responses."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text, found = texts.of(token)
        return {"token": text, "logprob": number(logprob), "bytes": found}

    return [
        {
            **entry(each.logprob.token, each.logprob.logprob),
            "top_logprobs": [entry(*top) for top in each.logprob.top.items()],
        }
        for each in told
    ]
