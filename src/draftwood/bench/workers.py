"""Prompts spread over processes, on one machine or a cluster, by Ray. The records are those of a serial run."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from draftwood.bench.measure import Unit, measure
from draftwood.bench.records import Record
from draftwood.bench.workbench import Models, Workbench

if TYPE_CHECKING:
    from draftwood.bench.protocols import Settings
    from draftwood.bench.runner import Order


def require_ray() -> Any:
    """Ray itself.

    Raises:
        ImportError: where it is not installed, with the command that does it.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would call home
    try:
        import ray
    except ImportError:
        raise ImportError("workers need Ray: pip install 'draftwood[ray]', or leave --workers out") from None
    return ray


class Worker:
    """One process with models of its own."""

    def __init__(self, models: Models, settings: "Settings", curve: dict | None, number: int) -> None:
        self.bench, self.name, self.warm = Workbench(models, settings), f"ray-{number}", False
        self.bench.use_curve(curve)

    def measure(self, unit: Unit) -> list[Record]:
        """The records of a unit; the first one is warmed up for."""
        if not self.warm and unit.kind == "turns":
            self.bench.warm_up(unit.cells, self.bench.encode(unit.prompts[0][1]))
        self.warm = True
        return measure(self.bench, unit, worker=self.name)


@contextmanager
def spread(order: "Order", units: Sequence[Unit], curve: dict | None) -> Iterator[Iterator[list[Record]]]:
    """The records of the units in the order in which they are done.

    Raises:
        ImportError: without Ray.
        OSError: where the cluster cannot be reached or a worker dies; what was measured is kept.
    """
    ray = require_ray()
    _connect(ray, order)
    try:
        count = min(order.workers, len(units))
        remote = ray.remote(num_cpus=order.models.threads or 1)(Worker)
        settings = order.protocol.settings
        workers = [remote.remote(order.models, settings, curve, number) for number in range(count)]
        pool = ray.util.ActorPool(workers)
        yield _results(ray, pool, units)
    finally:
        ray.shutdown()


def _connect(ray: Any, order: "Order") -> None:
    import logging

    local = {} if order.ray_address else {"num_cpus": order.workers * (order.models.threads or 1)}
    try:
        ray.init(
            address=order.ray_address,
            include_dashboard=None if order.ray_address else False,
            logging_level=logging.ERROR,
            log_to_driver=False,
            **local,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise OSError(f"cannot start workers at {order.ray_address or 'this machine'}: {reason}") from error


def _results(ray: Any, pool: Any, units: Sequence[Unit]) -> Iterator[list[Record]]:
    try:
        yield from pool.map_unordered(lambda worker, unit: worker.measure.remote(unit), units)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else OSError(str(error)) from error
    except ray.exceptions.RayError as error:
        raise OSError(f"a worker died ({' '.join(str(error).split())[:200]}); the same command goes on") from error
