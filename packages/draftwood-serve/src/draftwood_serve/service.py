"""Requests on the event loop: admission, time limits, clients that leave, the server's end."""

import asyncio
import math
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
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
from draftwood_serve.served import ServedModel, ServedModels
from draftwood_serve.settings import DRAIN_SECONDS, ServeSettings
from draftwood_serve.texts import TextUpdate

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Wanted = TextRequest | Callable[[LoadedTarget], TextRequest]


class ClientLeftError(Exception):
    """The client has left."""


class TextService:
    """Entry point of all endpoints to text generation.

    Args:
        settings: of the server, and its first model.
        others: settings of further models.
        say: takes lines about models that are loaded and leave.
    """

    def __init__(
        self,
        settings: ServeSettings,
        others: Sequence[ServeSettings] = (),
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.settings, self.stopping = settings, False
        self.open: set[OpenRequest] = set()
        self.models = ServedModels((settings, *others), self.open, say)
        self._preparing = ThreadPoolExecutor(2, "draftwood-prepare")
        self._compiling = ThreadPoolExecutor(2, "draftwood-compile")  # others do not wait for it

    def load(self) -> LoadedTarget:
        """Load the first model in its thread and wait for it; raises the thread's error."""
        return self.models.first.load()

    async def start(
        self,
        model: ServedModel,
        wanted: Wanted,
        owner: str,
        receive: Receive,
        keep_alive: float | None = None,
    ) -> "OpenRequest":
        """Accept a request, load its model where that is not in memory, and queue it.

        Args:
            wanted: what it asks for, or how to read that once its model is there.
            owner: of the API key it came with.
            receive: receives the client's messages, by which it is seen to leave.
            keep_alive: seconds that the model is to stay behind it; None says nothing.

        Raises:
            ApiError: where the request is at fault, too many wait, its model cannot be loaded, or
                the server stops.
        """
        request = await self.hold(model, receive, keep_alive)
        try:
            if callable(wanted):
                wanted = wanted(model.target)
            lm = await self._language_model(model, owner, wanted.speculation)
            loop, most = asyncio.get_running_loop(), self.settings.max_batch
            make = partial(make_job, lm, wanted, most, loop, model.target, owner)
            pool = self._compiling if wanted.has_grammar else self._preparing
            job = await loop.run_in_executor(pool, make)
            job.arrived, job.load_seconds = request.arrived, request.load_seconds
            request.begin(job)
        except BaseException as error:
            request.end(error)
            raise
        return request

    async def hold(
        self, model: ServedModel, receive: Receive, keep_alive: float | None = None
    ) -> "OpenRequest":
        """Accept a request for a model, which stays in memory until the request is closed.

        Args:
            keep_alive: as ``start``.

        Raises:
            ApiError: as ``start``.
        """
        self._require_place(model)
        request = OpenRequest(self, model, receive, keep_alive)
        self.open.add(request)
        try:
            await request.wait_for_model()
        except BaseException as error:
            request.end(error)
            raise
        return request

    def _require_place(self, model: ServedModel) -> None:
        if self.stopping:
            raise stopping()
        own = [each for each in self.open if each.model is model]
        settings, running = self.settings, [each for each in own if each.started]
        free = settings.max_batch - sum(len(each.job.choices) for each in running)
        if len(own) - len(running) < settings.max_queue + max(0, free):
            return
        model.metrics.refused()
        seconds = min(max(model.metrics.seconds_to_place() or 1.0, 0.05), 120.0)
        waits = (
            "1 request waits" if settings.max_queue == 1 else f"{settings.max_queue} requests wait"
        )
        waiting = f"{waits} already"
        told = waiting if settings.max_queue else "all places are taken, and none waits here"
        raise ApiError(
            429,
            f"{told}; try again in {seconds:.1f} s",
            code="rate_limit_exceeded",
            kind="rate_limit_error",
            headers={
                "retry-after": str(math.ceil(seconds)),
                "retry-after-ms": str(round(1e3 * seconds)),
            },
        )

    async def _language_model(
        self, model: ServedModel, owner: str, wanted: Speculation
    ) -> LanguageModel:
        try:
            if model.target.knows(owner, wanted):
                return model.target.using(owner, wanted)
            made = model.running.call(lambda target: target.using(owner, wanted))
            return await asyncio.wrap_future(made)
        except (ValueError, TypeError) as error:
            raise bad_request(one_line(error), "speculative") from error

    async def stop(self, seconds: float = DRAIN_SECONDS) -> None:
        """Take no further requests, wait for those under way, then end them with an error."""
        self.stopping = True
        await drain(self.open, seconds)

    def close(self) -> None:
        """End the threads."""
        self.models.close()
        for pool in (self._preparing, self._compiling):
            pool.shutdown(wait=False, cancel_futures=True)


class OpenRequest:
    """Accepted request, until its answer is complete or its client leaves.

    Within ``with`` one that asks for no texts ends with the block.

    Attributes:
        model: that it asks for.
        holds: whether the model must stay in memory for it.
        keep_alive: seconds that the model is to stay behind it; None says nothing.
        job: once it is prepared.
        load_seconds: that it waited for its model.
        prompt_tokens: of one that asks for no texts.
    """

    job: TextJob
    load_seconds, prompt_tokens = 0.0, 0

    def __init__(
        self,
        service: TextService,
        model: ServedModel,
        receive: Receive,
        keep_alive: float | None = None,
    ) -> None:
        self.service, self.model, self.arrived = service, model, perf_counter()
        self.holds, self.keep_alive = False, keep_alive
        self._loading: asyncio.Future[None] | None = None
        self._begun = self._gone = self._closed = self._cut = False
        self._unheard: list[Told] = []
        self._left = 0  # texts that go on
        self._watch = asyncio.ensure_future(self._watch_client(receive))

    def __enter__(self) -> "OpenRequest":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.end(error)

    @property
    def started(self) -> bool:
        """True if it has a place in the batch."""
        return self._begun and self.job.started > 0.0

    @property
    def seconds_left(self) -> float:
        """Rest of the time that a request may take, never none."""
        since = perf_counter() - self.arrived
        return max(self.service.settings.request_timeout - since, 0.001)

    async def wait_for_model(self) -> None:
        """Wait until the model is in memory, for as long as a request may take."""
        seconds = self.service.settings.request_timeout
        self._loading = asyncio.ensure_future(self.service.models.hold(self))
        try:
            await asyncio.wait_for(asyncio.shield(self._loading), seconds)
        except asyncio.TimeoutError:
            raise self._late(f"{self.model.name!r} found no room beside the others") from None
        except asyncio.CancelledError:
            self.require_wanted()
            raise
        finally:
            self._loading.cancel()
        self.load_seconds = perf_counter() - self.arrived

    def begin(self, job: TextJob) -> None:
        """Queue the prepared job if the client is still there."""
        self.require_wanted()
        self.job, self._left, self._begun = job, len(job.choices), True
        self.model.running.add(job)

    def require_wanted(self) -> None:
        """Raise where its client has left, or the server stops."""
        if self._gone:
            raise ClientLeftError
        if self._cut:
            raise stopping()

    async def _watch_client(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._end()

    def _end(self, why: ApiError | None = None) -> None:
        """End what goes on for it: the wait for its model, or its texts."""
        if self._loading is not None:
            self._loading.cancel()
        if self._begun:
            self.model.running.cancel(self.job, why)

    def _late(self, what: str) -> ApiError:
        seconds = self.service.settings.request_timeout
        return no_retry(504, f"{what} within {seconds:g} s", "timeout")

    async def updates(self) -> list[TextUpdate]:
        """Wait for updates since the last call; empty once there are none left.

        Raises:
            ApiError: where the texts could not be written, or not in time.
            ClientLeftError: where nobody listens.
        """
        if not self._left:
            return []
        if not self._unheard:
            try:
                self._unheard = await self.job.mailbox.get(self.seconds_left)
            except asyncio.TimeoutError:
                late = self._late("the answer was not written")
                self.model.running.cancel(self.job, late)
                self._unheard = [late]
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
        if not isinstance(told, ApiError):
            raise ClientLeftError
        self.job.error = told.code  # the model's thread may end it later than it is logged
        raise told

    def cut(self) -> None:
        """End it with an error, as the server stops."""
        self._cut = True
        self._end(stopping())

    def end(self, error: BaseException | None) -> None:
        """Close a request without texts, and count it unless it was at fault.

        Args:
            error: with which it ended; None where it was answered.
        """
        self.close()
        left = isinstance(error, ClientLeftError | asyncio.CancelledError)
        how = "finished" if error is None else "cancelled" if left else "failed"
        if not isinstance(error, ApiError) or error.status >= 500:
            seconds = perf_counter() - self.arrived
            self.model.metrics.closed(how, self.prompt_tokens, seconds)

    def close(self) -> None:
        """Close the request, and end its running texts."""
        if self._closed:
            return
        self._closed = True
        self._watch.cancel()
        self.service.open.discard(self)
        if self._left and self._begun:
            self.model.running.cancel(self.job)
        self.service.models.released(self.model)
