"""Forward requests to replicas of the server, and inform clients when one of them ends."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from starlette.responses import Response

from draftwood_serve.access_log import MARK, OUTCOME, end_of_events
from draftwood_serve.affinity import (
    Affinity,
    ReplicaLoad,
    beginnings_of,
    fields_of,
    texts_of,
)
from draftwood_serve.aggregate import AggregatedMetrics
from draftwood_serve.draining import drain
from draftwood_serve.errors import (
    OLLAMA,
    ApiError,
    bad_request,
    json_response,
    no_retry,
    stopping,
)
from draftwood_serve.formats.answers import DONE, event
from draftwood_serve.formats.ollama import error_line
from draftwood_serve.formats.responses import error_event
from draftwood_serve.guard import Message, Receive, Send
from draftwood_serve.replica import ReplicaFacts
from draftwood_serve.settings import DRAIN_SECONDS, ServeSettings
from draftwood_serve.stream import drop_connection

CONNECT_SECONDS = 5.0
METRICS_SECONDS = 5.0
RETRY_SECONDS = 2
IDLE_SECONDS = 15.0  # that a connection is kept; replicas keep them longer
PATIENCE_SECONDS = 30.0  # beyond the time limit of a request, which replicas watch
ASKED = (b"accept", b"authorization", b"content-type")  # headers that replicas read
CONNECTION = {b"connection", b"content-length", b"date", b"keep-alive", b"transfer-encoding"}
DROPPED = CONNECTION | {OUTCOME}  # headers of replicas that clients do not get
BUSY = (429, 503)  # another replica may have room
MOST_ENDED = 2  # replicas that may end amid one request: it may be what ends them
RESPONSES, INFILL = "/v1/responses", "/infill"

Header = tuple[bytes, bytes]


@dataclass(eq=False)
class RunningReplica:
    """A replica that takes requests.

    Attributes:
        address: for requests.
        facts: of the process behind it.
        load: how busy it is.
    """

    address: str
    facts: ReplicaFacts
    load: ReplicaLoad


class Replicas(Protocol):
    """Replicas that requests can be routed to.

    Attributes:
        key: that replicas ask for where clients need none.
        restarts: replicas that ended so far.
    """

    key: str
    restarts: int

    @property
    def living(self) -> Sequence[RunningReplica]: ...


class Router:
    """Application that forwards requests to replicas; ``Guard`` wraps it.

    A request whose answer has not begun when its replica ends goes to another one, and so does one
    that a replica has no room for. A stream that has begun ends with an error event.

    Args:
        replicas: that may come and go.
        settings: of the whole server.
    """

    def __init__(self, replicas: Replicas, settings: ServeSettings) -> None:
        self.replicas, self.settings = replicas, settings
        self.affinity = Affinity(max(1, settings.max_batch // 4))
        self.metrics, self.handovers = AggregatedMetrics(), 0
        self.open: set[Forwarding] = set()
        self.stopping = False
        patience = settings.request_timeout + PATIENCE_SECONDS
        self.most_seconds = 2 * patience  # for one that does not read its answer
        self.client = httpx.AsyncClient(
            timeout=httpx.Timeout(patience, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=IDLE_SECONDS),
            trust_env=False,  # no proxy between router and replicas
        )

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] in ("/health", "/metrics"):
            try:
                own = self._health() if scope["path"] == "/health" else await self._metrics()
            except ApiError as error:
                scope["state"]["error"] = error.code  # for the log
                own = error.response()
            await own(scope, receive, send)
        elif (body := await _whole(receive)) is not None:
            await self._forward(Forwarding(self, scope, body, send), receive)

    def choose(self, beginnings: Sequence[bytes], tried: set[int]) -> RunningReplica:
        """Choose a replica for a request, among those that it was not sent to yet.

        Raises:
            ApiError: where there is none.
        """
        if self.stopping:
            raise stopping()
        left = {each.load: each for each in self.untried(tried)}
        if not left:
            raise none_there()
        return left[self.affinity.choose(beginnings, list(left))]

    def untried(self, tried: set[int]) -> list[RunningReplica]:
        """Replicas that a request was not sent to yet."""
        return [each for each in self.replicas.living if each.load.name not in tried]

    async def _forward(self, forwarding: "Forwarding", receive: Receive) -> None:
        """Answer a request; if its client leaves, close the connection to the replica."""
        task = forwarding.task = asyncio.ensure_future(forwarding.run())
        left = asyncio.ensure_future(_left(receive))
        self.open.add(forwarding)
        try:
            both, first = {task, left}, asyncio.FIRST_COMPLETED
            done, _ = await asyncio.wait(both, timeout=self.most_seconds, return_when=first)
            if not done:
                await drop_connection(forwarding.scope)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        finally:
            left.cancel()
            task.cancel()
            self.open.discard(forwarding)

    def _health(self) -> Response:
        if self.stopping:
            raise stopping()
        if not self.replicas.living:
            raise none_there()
        return json_response({"status": "ok", "replicas": len(self.replicas.living)})

    async def _metrics(self) -> Response:
        living = self.replicas.living
        found = await asyncio.gather(*(self._page(replica) for replica in living))
        names = [replica.load.name for replica in living]
        pages = {name: page for name, page in zip(names, found, strict=True) if page is not None}
        told = self.metrics.page(pages, names, self.replicas.restarts, self.handovers)
        return Response(told, media_type="text/plain; version=0.0.4")

    async def _page(self, replica: RunningReplica) -> str | None:
        """A replica's own page; None where it does not answer."""
        headers = {"authorization": f"Bearer {self.replicas.key}"}
        url = f"{replica.address}/metrics"
        try:
            answer = await self.client.get(url, headers=headers, timeout=METRICS_SECONDS)
        except httpx.TransportError:
            return None
        return answer.text if answer.status_code == 200 else None

    async def stop(self, seconds: float = DRAIN_SECONDS) -> None:
        """Take no further requests, wait for those under way, then end them with an error."""
        self.stopping = True
        await drain(self.open, seconds)
        await self.client.aclose()


class Forwarding:
    """A request on its way to a replica, and the answer on its way back.

    Args:
        router: that chooses the replica.
        scope: of the request.
        body: of the request.
        send: to the client.
    """

    task: "asyncio.Task[None]"

    def __init__(self, router: Router, scope: Message, body: bytes, send: Send) -> None:
        self.router, self.scope, self.body, self.send = router, scope, body, send
        query = scope["query_string"]
        self.target = scope["raw_path"] + (b"?" + query if query else b"")
        self.headers = {
            name.lower(): value for name, value in scope["headers"] if name.lower() in ASKED
        }
        self.headers[OUTCOME] = b"1"
        if not router.settings.api_keys:
            self.headers[b"authorization"] = f"Bearer {router.replicas.key}".encode()
        self.begun = self._cut = False
        self._is_whole = False  # once the last event of a stream was passed on
        self._told = 0  # events

    def cut(self) -> None:
        """End it with an error, as the server stops; a second call lets that go on."""
        if not self._cut:
            self._cut = True
            self.task.cancel()

    async def run(self) -> None:
        """Answer, with an error if it must be."""
        try:
            await self._ask_replicas()
        except asyncio.CancelledError:
            if not self._cut:
                raise
            await self._fail(stopping())
        except ApiError as error:
            await self._fail(error)

    async def _ask_replicas(self) -> None:
        """Try one replica after the other until one answers; once it has begun, it cannot be
        replaced.
        """
        fields, state = fields_of(self.body), self.scope["state"]
        if self.body:
            self._name_model(fields)
        beginnings, texts = beginnings_of(state["owner"], fields), texts_of(fields)
        tried, ended, full = set[int](), 0, None
        while True:
            if full is not None and not self.router.untried(tried):
                return await self._tell(*full)
            replica = self.router.choose(beginnings, tried)
            self.router.handovers += full is not None
            if full is None:  # at once, for requests that come meanwhile
                self.router.affinity.remember(beginnings, replica.load)
            tried.add(replica.load.name)
            replica.load.open += texts
            replica.load.served += 1
            try:
                full = await self._relay(replica)
                if full is None:
                    return self.router.affinity.remember(beginnings, replica.load)
            except httpx.InvalidURL:
                raise bad_request("the path cannot be read") from None
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
            except httpx.TransportError:
                if self._is_whole:  # it ended behind the last event
                    return await self._write(b"", more=False)
                ended += 1
                if self.begun or ended == MOST_ENDED:
                    raise lost() if self.begun else ends_replicas() from None
            finally:
                replica.load.open -= texts

    def _name_model(self, fields: Mapping[str, Any]) -> None:
        """Tell the log which model is asked for, as long as no replica tells it."""
        names = self.router.settings.names
        name = names[0] if fields.get("model") is None else fields["model"]
        if name in names:
            self.scope["state"]["model"] = name

    async def _relay(self, replica: RunningReplica) -> tuple[httpx.Response, bytes] | None:
        """Send a replica's answer to the client; give it back where the replica has no room."""
        url = httpx.URL(replica.address).copy_with(raw_path=self.target)
        asked = self.router.client.stream(
            self.scope["method"], url, headers=self.headers, content=self.body
        )
        async with asked as answer:
            mark = end_of_events(answer.headers.get("content-type", ""))
            if not mark:
                whole = await answer.aread()
                if answer.status_code in BUSY:
                    return answer, whole
                return await self._tell(answer, whole)
            await self._begin(answer)
            held = b""  # beginning of an event; a truncated event is not sent
            async for part in answer.aiter_raw():
                held += part
                events, end, held = held.rpartition(mark)
                if end:
                    self._told += events.count(mark) + 1
                    await self._write(events + end)
                    self._is_whole = (events + end).endswith(DONE.encode())
            held, _, outcome = held.partition(MARK)
            self._hear(outcome)
            await self._write(held, more=False)

    async def _tell(self, answer: httpx.Response, whole: bytes) -> None:
        self._hear(answer.headers.get(OUTCOME.decode()))
        await self._begin(answer, [(b"content-length", b"%d" % len(whole))])
        await self._write(whole, more=False)

    def _hear(self, outcome: str | bytes | None) -> None:
        """Take what came of the request, for the log."""
        if outcome:
            self.scope["state"] |= json.loads(outcome)

    async def _begin(self, answer: httpx.Response, more: Sequence[Header] = ()) -> None:
        kept = [pair for pair in answer.headers.raw if pair[0].lower() not in DROPPED]
        start = {"type": "http.response.start", "status": answer.status_code}
        self.begun = True
        await self.send({**start, "headers": [*kept, *more]})

    async def _write(self, part: bytes, more: bool = True) -> None:
        await self.send({"type": "http.response.body", "body": part, "more_body": more})

    async def _fail(self, error: ApiError) -> None:
        path = self.scope["path"]
        self.scope["state"]["error"] = error.code  # for the log
        if not self.begun:
            await error.response(path)(self.scope, _nothing, self.send)
        elif path.startswith(OLLAMA):
            await self._write(error_line(error).encode(), more=False)
        elif path == RESPONSES:
            await self._write(error_event(error, self._told).encode(), more=False)
        else:
            last = "" if path == INFILL else DONE
            await self._write((event(error.body) + last).encode(), more=False)


def lost() -> ApiError:
    """Error that ends a stream whose replica ended."""
    return ApiError(
        500,
        "the replica that wrote this text has ended; send the request again",
        code="replica_lost",
        kind="server_error",
    )


def ends_replicas() -> ApiError:
    """500: a request during which replica after replica ended."""
    told = (
        f"{MOST_ENDED} replicas ended amid this request, or did not answer it; change it before you"
        " send it again"
    )
    return no_retry(500, told, "replica_lost")


def none_there() -> ApiError:
    """503: all replicas have ended, and new ones are starting."""
    return ApiError(
        503,
        "no replica takes requests at the moment, another one starts; ask again",
        code="no_replica",
        kind="server_error",
        headers={"retry-after": str(RETRY_SECONDS)},
    )


async def _whole(receive: Receive) -> bytes | None:
    """The body of a request, which ``Guard`` has bounded; None where the client left."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _left(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _nothing() -> Message:
    return {"type": "http.disconnect"}
