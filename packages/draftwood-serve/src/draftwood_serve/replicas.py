"""Servers over the same model in several processes, started and replaced by Ray.

Ray places them, on this machine or a cluster, gives each its CPUs or a GPU, and tells when one
ends. Requests do not go through Ray Serve: its proxy cuts a stream where a replica dies, and a
client can get an error event only from a process before the replica. So a router forwards requests
and chooses replicas; see ``router``.
"""

import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from draftwood.cluster import Cluster
from draftwood.loading import hub
from draftwood_serve.access_log import ServerLog
from draftwood_serve.affinity import ReplicaLoad
from draftwood_serve.errors import one_line
from draftwood_serve.loaded import require_method
from draftwood_serve.replica import Replica, ReplicaFacts
from draftwood_serve.router import Router, RunningReplica
from draftwood_serve.run import address_of, bind, call_when_started, server_of
from draftwood_serve.settings import ServeSettings

WATCH_SECONDS = 0.2
LOOK_SECONDS, LOST_SECONDS = 2.0, 5.0  # between checks of a cluster; that it may be unreachable
STOP_SECONDS = 5.0
SLOW_START_SECONDS = 30.0  # after which the user is told about the wait
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds until a start that failed is tried again


@dataclass(eq=False)
class _ReplicaSlot:
    """Slot for one replica after the other.

    Attributes:
        actor: of the newest one.
        waited: pending results of Ray: its facts once it has started, then its end.
    """

    actor: Any = None
    waited: Any = None
    running: RunningReplica | None = None
    pause: float = FIRST_PAUSE
    again: float = field(default=0.0)  # when to start the next one, if there is none


class ReplicaSet:
    """Set of replicas, in which one that ends is replaced.

    Args:
        settings: of the whole server; each replica has its batch and its queue.
        count: of replicas.
        address: of a Ray cluster; None for this machine alone.
        say: takes lines for the user, and the level of each in the log.

    Attributes:
        key: that the router brings where clients need none.
        restarts: replicas that ended so far.
        needs: CPUs and GPUs of each replica.
        facts: of the first replica, once all have started.
        lost: the error that the cluster is gone, once it is.
        when_lost: called then.

    Raises:
        ImportError: without Ray.
        OSError: where no cluster answers.
        ValueError: where there is no room for so many.
    """

    facts: ReplicaFacts
    lost: OSError | None = None

    def __init__(
        self,
        settings: ServeSettings,
        count: int,
        address: str | None,
        say: Callable[[str, str], None],
    ) -> None:
        if settings.device is not None and ":" in settings.device:
            raise ValueError(
                f"each replica takes a device of its own, so {settings.device} cannot be for all;"
                f" say --device {settings.device.partition(':')[0]}, and choose among GPUs with"
                " CUDA_VISIBLE_DEVICES"
            )
        self.cluster = Cluster("replicas", address, "leave --replicas out")
        self.ray = self.cluster.ray
        self.say, self.address, self.everywhere = say, address, address is not None
        self.when_lost: Callable[[], None] = lambda: None
        self._gone_since: float | None = None
        self._look_again = 0.0
        own = self.cluster.share(count)
        self.cluster.connect(count * (settings.threads or own))
        self.restarts, self._ending, self._names = 0, threading.Event(), 0
        try:
            self.needs = self._needs(settings, count, own)
        except BaseException:
            self.ray.shutdown()
            raise
        self.key = (settings.api_keys or (secrets.token_urlsafe(),))[0]
        self._slots = [_ReplicaSlot() for _ in range(count)]
        self.settings = self._of_each(settings)
        self._watcher = threading.Thread(target=self._watch, name="draftwood-replicas", daemon=True)

    def _needs(self, settings: ServeSettings, count: int, own: int) -> dict[str, int]:
        """CPUs and GPUs of a replica: equal shares of those available."""
        nodes = self.cluster.nodes
        on_gpu = any(node.get("GPU") for node in nodes)
        if settings.device is not None:
            on_gpu = settings.device == "cuda"
        threads = own
        if self.everywhere:
            threads = max(1, int(sum(node.get("CPU", 0) for node in nodes)) // count)
            while threads > 1 and self.cluster.fitting({"CPU": threads}) < count:
                threads -= 1
        needs = {"CPU": settings.threads or threads, "GPU": int(on_gpu)}
        self.cluster.require_room(count, needs)
        return needs

    def _of_each(self, settings: ServeSettings) -> ServeSettings:
        """Settings of a replica, which may run in another directory, with a GPU that Ray chose."""
        count, cpus = len(self._slots), max(node.get("CPU", 0) for node in self.cluster.nodes)
        return replace(
            settings,
            **settings.from_anywhere(),
            host="127.0.0.1",
            device="cuda" if self.needs["GPU"] else settings.device,
            threads=self.needs["CPU"],
            api_keys=settings.api_keys or (self.key,),
            served_names=settings.names,
            replicas=count,
            replicas_per_node=max(1, min(count, int(cpus) // self.needs["CPU"])),
        )

    def start(self) -> None:
        """Start all and wait for them; raises the error of one that fails."""
        for slot in self._slots:
            self._begin(slot)
        ready = [slot.waited for slot in self._slots]
        done, late = self.ray.wait(ready, num_returns=len(ready), timeout=SLOW_START_SECONDS)
        if late:
            told = f"{len(done)} of {len(ready)} replicas have started; waiting for the others"
            self.say(told, "info")
        for slot in self._slots:
            try:
                self._take(slot, self.ray.get(slot.waited))
            except self.ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else error from None
            except self.ray.exceptions.RayError as error:
                raise OSError(f"a replica ended while it started: {_last_line(error)}") from error
        self.facts = self.living[0].facts
        self._watcher.start()

    @property
    def living(self) -> list[RunningReplica]:
        """Replicas that take requests, as far as is known."""
        return [slot.running for slot in self._slots if slot.running is not None]

    def close(self) -> None:
        """End all of them, which have a few seconds to store what passes taught."""
        self._ending.set()
        if self._watcher.is_alive():
            self._watcher.join(10)
        if self.lost is not None:  # Ray would wait for the cluster
            return
        try:
            ends = [slot.actor.stop.remote() for slot in self._slots if slot.running is not None]
            if ends:
                self.ray.wait(ends, num_returns=len(ends), timeout=STOP_SECONDS)
        finally:
            self.ray.shutdown()

    def _begin(self, slot: _ReplicaSlot) -> None:
        needs = {"num_cpus": self.needs["CPU"], "num_gpus": self.needs["GPU"]}
        remote = self.ray.remote(**needs, max_concurrency=2)(Replica)  # ``stop`` beside ``run``
        slot.actor = remote.remote(self.settings, self.everywhere)
        slot.waited = slot.actor.start.remote()

    def _take(self, slot: _ReplicaSlot, facts: ReplicaFacts) -> None:
        slot.running = RunningReplica(facts.address, facts, ReplicaLoad(self._names))
        slot.waited, slot.pause = slot.actor.run.remote(), FIRST_PAUSE
        self._names += 1

    def _watch(self) -> None:
        """Replace replicas that end, until the set is closed."""
        while not self._ending.wait(WATCH_SECONDS):
            due = [s for s in self._slots if s.waited is None and perf_counter() >= s.again]
            there = self._look(now=bool(due))
            if self.lost is not None:
                return self.when_lost()
            for slot in due if there else ():
                self._begin(slot)
            waited = [slot.waited for slot in self._slots if slot.waited is not None]
            done = self.ray.wait(waited, num_returns=len(waited), timeout=0)[0] if waited else []
            for slot in self._slots:
                if slot.waited in done:
                    self._hear(slot)

    def _look(self, now: bool) -> bool:
        """True if the cluster answers; without it Ray would end this process after a while.

        Args:
            now: look even where that was done shortly before.
        """
        if self.address is None or not (now or perf_counter() >= self._look_again):
            return True
        try:
            self.cluster.require_answer()
        except OSError:
            self._gone_since = self._gone_since or perf_counter()
            if perf_counter() - self._gone_since > LOST_SECONDS:
                self.lost = OSError(
                    f"the Ray cluster at {self.address} has ended, and its replicas with it; start"
                    " it again with `ray start --head`, then this server"
                )
            return False
        self._gone_since, self._look_again = None, perf_counter() + LOOK_SECONDS
        return True

    def _hear(self, slot: _ReplicaSlot) -> None:
        """Handle that a replica has started, or has ended."""
        try:
            self._take(slot, self.ray.get(slot.waited))
        except Exception as error:
            told = f"a replica ended ({_last_line(error)})"
            if slot.running is not None:
                self.restarts += 1
                slot.running, slot.again = None, 0.0
                self.say(f"{told}; another one starts", "error")
            else:
                slot.again = perf_counter() + slot.pause
                slot.pause = min(2 * slot.pause, LONGEST_PAUSE)
                self.say(f"{told} before it took requests; it is tried again", "error")
            slot.waited = None
            if self._look(now=True):
                self.ray.kill(slot.actor)


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return one_line(ValueError(lines[-1]))[:200]


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends a start like a server: Ray would write its stack and leave replicas behind."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def serve_replicas(
    settings: ServeSettings,
    count: int,
    address: str | None,
    ready: Callable[[ReplicaSet, str], None],
    log: ServerLog,
) -> None:
    """Start replicas of a server and forward requests to them until a signal says to stop.

    Args:
        settings: of the whole server; each replica has its own batch and queue.
        count: of replicas.
        address: of a Ray cluster; None for this machine alone.
        ready: called once, when requests are taken, with the server's address.
        log: takes lines for the user.

    Raises:
        ImportError: without Ray.
        OSError: where an address cannot be had or reached.
        ValueError: as ``draftwood.load``, and where so many replicas find no place.
        KeyboardInterrupt: after Ctrl-C, once all is closed.
    """
    require_method(settings.first_method, settings)
    if address is None:  # elsewhere other files may lie
        for name in filter(None, (settings.model, settings.drafts.model)):
            hub.described(name)
    bound = bind(settings.host, settings.port)
    try:
        with closing(ReplicaSet(settings, count, address, log.note)) as replicas:
            with _ended_by_sigterm():
                replicas.start()
            router = Router(replicas, settings)
            server = server_of(router, router, settings, log)
            replicas.when_lost = lambda: server.handle_exit(signal.SIGTERM, None)
            call_when_started(server, lambda: ready(replicas, address_of(bound)))
            server.run(sockets=[bound])
            if replicas.lost is not None:
                raise replicas.lost
    finally:
        bound.close()
    if server.interrupted:
        raise KeyboardInterrupt
