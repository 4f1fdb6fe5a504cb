"""Run the server: its address, start, signals and end."""

import asyncio
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Sequence, Sized
from types import FrameType
from typing import Any, Protocol

import uvicorn

from draftwood.native import threads
from draftwood_serve.access_log import Logged, ServerLog, Telling, noting
from draftwood_serve.app import make_app
from draftwood_serve.arenas import share_free_memory
from draftwood_serve.guard import App, Guard
from draftwood_serve.protocol import LimitedHttp
from draftwood_serve.service import TextService
from draftwood_serve.settings import DRAIN_SECONDS, ServeSettings

BACKLOG = 512


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket to this address; it does not listen yet.

    Raises:
        OSError: where it cannot be had, with what to do.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"),
            port,
            type=socket.SOCK_STREAM,
            proto=socket.IPPROTO_TCP,
            flags=socket.AI_PASSIVE,
        )[0]
        # asyncio sends small writes at once where the socket names its protocol alone
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise OSError(f"there is no address {host}: {error.strerror}") from None
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
    except OSError as error:
        found.close()
        raise _taken(host, port, error) from None
    return found


def _taken(host: str, port: int, error: OSError) -> OSError:
    return OSError(
        f"port {port} at {host} cannot be had: {error.strerror}; is another server running there?"
        " choose another one with --port"
    )


def address_of(bound: socket.socket) -> str:
    """URL by which a client on this machine reaches a socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Drained(Protocol):
    """Server that can be stopped gracefully."""

    @property
    def open(self) -> Sized:
        """Requests under way."""
        ...

    async def stop(self, seconds: float) -> None:
        """Take no further requests, and end those that are not done after so many seconds."""
        ...


class DrainingServer(uvicorn.Server):
    """uvicorn server that finishes running requests when stopped, and refuses new ones.

    Args:
        service: stopped first.
        guard: stopped once the service has ended what it wrote.
        log: takes lines for the user, and what uvicorn tells.
        drain_seconds: that requests under way have left.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        service: Drained,
        guard: Guard,
        log: ServerLog,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        super().__init__(config)
        self.service, self.guard, self.log = service, guard, log
        self.drain_seconds = drain_seconds
        self.interrupted = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Future[None] | None = None
        self._signals = 0

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until it is stopped."""
        with noting(logging.getLogger("uvicorn"), self.log):
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen at the sockets; raises OSError where another server does so by now."""
        self._loop = asyncio.get_running_loop()
        host, port = sockets[0].getsockname()[:2] if sockets else ("", 0)
        try:
            await super().startup(sockets)
        except OSError as error:
            self.should_exit = True  # nobody waits for the start any more
            if error.errno != errno.EADDRINUSE:
                raise
            raise _taken(host, port, error) from None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: the first drains, the second cuts what runs, the third ends at once."""
        self.interrupted = self.interrupted or sig == signal.SIGINT
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        seconds, self._signals = self.drain_seconds, self._signals + 1
        if self._signals > 2:
            self.should_exit = self.force_exit = True
            return
        if self._draining is not None:
            self._draining.cancel()
            seconds = 0.0
        elif count := len(self.service.open):
            self.log.note(
                f"stopping: {count} request{'s' * (count > 1)} under way may go on for"
                f" {seconds:.0f} s; once more ends them now"
            )
        self._draining = asyncio.ensure_future(self._drain(seconds))

    async def _drain(self, seconds: float) -> None:
        await self.service.stop(seconds)
        self.guard.stop()
        self.should_exit = True


def make_server(
    service: TextService, log: ServerLog, drain_seconds: float = DRAIN_SECONDS
) -> DrainingServer:
    """Make the server of a service that has loaded its first model."""
    return server_of(Telling(make_app(service)), service, service.settings, log, drain_seconds)


def server_of(
    app: App,
    service: Drained,
    settings: ServeSettings,
    log: ServerLog,
    drain_seconds: float = DRAIN_SECONDS,
) -> DrainingServer:
    """Make the server of an application, guarded and logged; the service stops with it."""
    guard = Guard(app, settings)
    logged: Any = Logged(guard, log)
    config = uvicorn.Config(
        logged,
        http=LimitedHttp,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
    )
    return DrainingServer(config, service, guard, log, drain_seconds)


def serve(
    settings: Sequence[ServeSettings],
    ready: Callable[[TextService, str], None],
    log: ServerLog,
) -> None:
    """Load a model, and serve it and the others until a signal says to stop.

    Args:
        settings: of each model; of the first, the address too.
        ready: called once, when requests are taken, with the server's address.
        log: takes lines for the user.

    Raises:
        OSError: where the address cannot be had.
        ValueError: as ``draftwood.load``.
        KeyboardInterrupt: after Ctrl-C, once all is closed.
    """
    bound = bind(settings[0].host, settings[0].port)
    prepare_process(settings[0])
    try:
        service = TextService(settings[0], settings[1:], log.note)
    except BaseException:
        bound.close()
        raise
    try:
        service.load()
        server = make_server(service, log)
        call_when_started(server, lambda: ready(service, address_of(bound)))
        server.run(sockets=[bound])
    finally:
        bound.close()
        service.close()
    if server.interrupted:
        raise KeyboardInterrupt


def prepare_process(settings: ServeSettings) -> None:
    """Let this process run with as many CPU threads as the settings say, which share what memory
    they free.
    """
    share_free_memory()
    if settings.threads is not None:
        threads.set_threads(settings.threads)


def call_when_started(server: uvicorn.Server, then: Callable[[], None]) -> None:
    """Call a function, in a thread of its own, once the server takes requests."""

    def wait() -> None:
        while not server.started and not server.should_exit:
            threading.Event().wait(0.01)
        if server.started:
            then()

    threading.Thread(target=wait, daemon=True).start()
