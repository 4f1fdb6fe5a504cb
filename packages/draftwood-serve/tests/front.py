"""A router over replicas that run in this process or are played."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx

from draftwood_serve.access_log import ServerLog
from draftwood_serve.affinity import ReplicaLoad
from draftwood_serve.replica import ReplicaFacts
from draftwood_serve.router import Router, RunningReplica
from draftwood_serve.run import address_of, bind, server_of
from draftwood_serve.settings import ServeSettings
from local_server import wait_for

KEY = "replicas' own"


@dataclass
class FewReplicas:
    """Replicas by their addresses."""

    living: list[RunningReplica]
    key: str = KEY
    restarts: int = 0

    @classmethod
    def at(cls, *addresses: str) -> "FewReplicas":
        facts = [ReplicaFacts(address, 1, 512, None) for address in addresses]
        return cls([RunningReplica(f.address, f, ReplicaLoad(n)) for n, f in enumerate(facts)])


@dataclass
class Front:
    router: Router
    replicas: FewReplicas
    client: httpx.Client
    address: str
    drain: Callable[[], None]

    @property
    def served(self) -> list[int]:
        """Requests that each replica got."""
        return [each.load.served for each in self.replicas.living]


@contextmanager
def front(
    *addresses: str, drain_seconds: float = 0.5, log: ServerLog | None = None, **settings: Any
) -> Iterator[Front]:
    """A router that takes requests."""
    told = ServeSettings(port=0, **settings)
    replicas = FewReplicas.at(*addresses)
    router = Router(replicas, told)
    server = server_of(router, router, told, log or ServerLog(), drain_seconds)
    bound = bind("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        address = address_of(bound)
        drain = lambda: server.handle_exit(15, None)  # noqa: E731
        with httpx.Client(base_url=address, timeout=60) as client:
            yield Front(router, replicas, client, address, drain)
    finally:
        if not router.stopping:
            server.handle_exit(15, None)  # as a signal would: it closes its connections
        thread.join(30)
        bound.close()
    assert not thread.is_alive()


@contextmanager
def played(*parts: bytes) -> Iterator[str]:
    """A server that sends these parts to whoever asks, then breaks off; its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    ending = threading.Event()

    def run() -> None:
        listening.settimeout(0.05)
        while not ending.is_set():
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(5)
                connection.recv(2**20)
                with suppress(OSError):  # who asked may leave
                    for part in parts:
                        connection.sendall(part)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield address_of(listening)
    finally:
        ending.set()
        thread.join(10)
        listening.close()


def chunked(*events: bytes, kind: str = "text/event-stream") -> Sequence[bytes]:
    """The beginning of an answer in chunks, which never ends."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head.encode(), *(b"%x\r\n%b\r\n" % (len(each), each) for each in events)]
