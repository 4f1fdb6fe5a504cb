"""Requests on the event loop: admission, time limits, clients that leave, the server's end."""

import asyncio
import math
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any

from draftwood.text.language_model import LanguageModel
from draftwood_serve.draining import drain
from draftwood_serve.errors import ApiError, bad_request, no_retry, one_line, stopping
from draftwood_serve.jobs import Speculation, TextJob, TextRequest, make_job
from draftwood_serve.loaded import LoadedTarget
from draftwood_serve.mailbox import Told
from draftwood_serve.metrics import Metrics
from draftwood_serve.settings import DRAIN_SECONDS, ServeSettings
from draftwood_serve.texts import TextUpdate
from draftwood_serve.thread import ModelThread
from draftwood_serve.token_texts import TokenTexts

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientLeftError(Exception):
    """The client has left."""


class TextService:
    """Entry point of all endpoints to text generation.

    Args:
        settings: of the server.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self.settings, self.metrics = settings, Metrics()
        self.thread = ModelThread(settings, self.metrics)
        self.stopping = False
        self.open: set[OpenRequest] = set()
        self._preparing = ThreadPoolExecutor(2, "draftwood-prepare")

    def load(self) -> LoadedTarget:
        """Load the model in its thread and wait for it; raises the thread's error."""
        self.target = self.thread.start().result()
        self.token_texts = TokenTexts(self.target.plain.tokenizer)
        return self.target

    async def start(self, wanted: TextRequest, owner: str, receive: Receive) -> "OpenRequest":
        """Accept a request and queue it.

        Args:
            owner: of the API key it came with.
            receive: receives the client's messages, by which it is seen to leave.

        Raises:
            ApiError: where the request is at fault, too many wait, or the server stops.
        """
        self._require_place()
        request = OpenRequest(self, receive)
        self.open.add(request)
        try:
            lm = await self._language_model(owner, wanted.speculation)
            loop = asyncio.get_running_loop()
            make = partial(make_job, lm, wanted, self.settings.max_batch, loop, self.target, owner)
            job = await loop.run_in_executor(self._preparing, make)
            job.arrived = request.arrived
            request.begin(job)
        except BaseException:
            request.close()
            raise
        return request

    def _require_place(self) -> None:
        if self.stopping:
            raise stopping()
        settings, running = self.settings, [each for each in self.open if each.started]
        free = settings.max_batch - sum(len(each.job.choices) for each in running)
        if len(self.open) - len(running) < settings.max_queue + max(0, free):
            return
        self.metrics.refused()
        seconds = min(max(self.metrics.seconds_to_place() or 1.0, 0.05), 120.0)
        raise ApiError(
            429,
            f"{settings.max_queue} requests wait already; try again in {seconds:.1f} s",
            code="rate_limit_exceeded",
            kind="rate_limit_error",
            headers={
                "retry-after": str(math.ceil(seconds)),
                "retry-after-ms": str(round(1e3 * seconds)),
            },
        )

    async def _language_model(self, owner: str, wanted: Speculation) -> LanguageModel:
        try:
            if self.target.knows(owner, wanted):
                return self.target.using(owner, wanted)
            made = self.thread.call(lambda target: target.using(owner, wanted))
            return await asyncio.wrap_future(made)
        except (ValueError, TypeError) as error:
            raise bad_request(one_line(error), "speculative") from error

    async def stop(self, seconds: float = DRAIN_SECONDS) -> None:
        """Take no further requests, wait for those under way, then end them with an error."""
        self.stopping = True
        await drain(self.open, seconds)

    def close(self) -> None:
        """End the threads."""
        self.thread.close()
        self._preparing.shutdown(wait=False, cancel_futures=True)


class OpenRequest:
    """Accepted request, until its answer is complete or its client leaves.

    Attributes:
        job: once it is prepared.
    """

    job: TextJob

    def __init__(self, service: TextService, receive: Receive) -> None:
        self.service, self.arrived = service, perf_counter()
        self._begun = self._gone = self._closed = self._cut = False
        self._unheard: list[Told] = []
        self._left = 0  # texts that go on
        self._watch = asyncio.ensure_future(self._watch_client(receive))

    @property
    def started(self) -> bool:
        """True if it has a place in the batch."""
        return self._begun and self.job.started > 0.0

    def begin(self, job: TextJob) -> None:
        """Queue the prepared job if the client is still there."""
        if self._gone:
            raise ClientLeftError
        if self._cut:
            raise stopping()
        self.job, self._left, self._begun = job, len(job.choices), True
        self.service.thread.add(job)

    async def _watch_client(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if self._begun:
            self.service.thread.cancel(self.job)

    async def updates(self) -> list[TextUpdate]:
        """Wait for updates since the last call; empty once there are none left.

        Raises:
            ApiError: where the texts could not be written, or not in time.
            ClientLeftError: where nobody listens.
        """
        if not self._left:
            return []
        if not self._unheard:
            left = self.service.settings.request_timeout - (perf_counter() - self.arrived)
            try:
                self._unheard = await self.job.mailbox.get(max(left, 0.001))
            except asyncio.TimeoutError:
                raise no_retry(
                    504,
                    f"the answer took longer than {self.service.settings.request_timeout:g} s",
                    "timeout",
                    "server_error",
                ) from None
        found: list[TextUpdate] = []
        while self._unheard and not isinstance(self._unheard[0], ApiError | None):
            found += self._unheard.pop(0)  # type: ignore[arg-type]
        if not found:
            self._raise(self._unheard[0])
        self._left -= sum(each.finish_reason is not None for each in found)
        if not self._left:
            self.close()
        return found

    def _raise(self, told: Told) -> None:
        self._left = 0
        raise told if isinstance(told, ApiError) else ClientLeftError

    def cut(self) -> None:
        """End it with an error, as the server stops."""
        self._cut = True
        if self._begun:
            self.service.thread.cancel(self.job, stopping())

    def close(self) -> None:
        """Close the request, and end its running texts."""
        if self._closed:
            return
        self._closed = True
        self._watch.cancel()
        self.service.open.discard(self)
        if self._left and self._begun:
            self.service.thread.cancel(self.job)
