"""Replica of a server, in a process that Ray starts."""

import os
import threading
import time
from dataclasses import dataclass, replace

from draftwood_serve.access_log import ServerLog
from draftwood_serve.run import DrainingServer, address_of, bind, make_server, prepare_process
from draftwood_serve.service import TextService
from draftwood_serve.settings import ServeSettings

CHECK_SECONDS = 0.2


@dataclass(frozen=True)
class ReplicaFacts:
    """Address and properties of a replica.

    Attributes:
        address: for the router.
        process: number of the process on its machine.
        context_length: of the model; None for no limit.
        instructions: what its CPU multiplies matrices with; None where PyTorch does.
        method: of requests that name none.
    """

    address: str
    process: int
    context_length: int | None
    instructions: str | None
    method: str = ""


class Replica:
    """The application of `draftwood serve` in a process of its own.

    Args:
        settings: of the server; it asks for an API key, for others reach its address too.
        everywhere: listen where other machines of a cluster reach it.
    """

    def __init__(self, settings: ServeSettings, everywhere: bool) -> None:
        self.settings, self.everywhere = settings, everywhere

    def start(self) -> ReplicaFacts:
        """Load the model and take requests. Raises what keeps it from that."""
        prepare_process(self.settings)
        host = _own_address() if self.everywhere else self.settings.host
        bound = bind(host, 0)
        self.service = TextService(replace(self.settings, host=host, port=0))
        target = self.service.load()
        self.server: DrainingServer = make_server(self.service, ServerLog())
        self.thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [bound]}, daemon=True
        )
        self.thread.start()
        while not self.server.started and self.thread.is_alive():
            time.sleep(0.01)
        if not self.server.started:
            raise OSError(f"the server of a replica could not listen at {host}; its log tells why")
        length = target.context_length
        return ReplicaFacts(
            address_of(bound), os.getpid(), length, target.instructions, target.method
        )

    def run(self) -> None:
        """Block until the replica can answer no more; raises the reason."""
        while self.thread.is_alive() and not self.service.models.first.is_broken:
            time.sleep(CHECK_SECONDS)
        raise RuntimeError("the server of this replica has ended")

    def stop(self) -> None:
        """End the model's thread, which stores what passes taught of their costs."""
        self.service.close()


def _own_address() -> str:
    import ray

    return ray.util.get_node_ip_address()
