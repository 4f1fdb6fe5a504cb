"""Prompts spread over processes, on one machine or a cluster, by Ray.

The records are those of a serial run.
"""

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from draftwood.cluster import Cluster
from draftwood_bench.plan.models import Models
from draftwood_bench.plan.units import Unit
from draftwood_bench.records.files import Record, RunInfo
from draftwood_bench.run.describe import digests
from draftwood_bench.run.measure import measure
from draftwood_bench.run.workbench import Workbench

if TYPE_CHECKING:
    from draftwood_bench.plan.order import Order
    from draftwood_bench.plan.protocols import Settings


def cluster_at(address: str | None) -> Cluster:
    """The cluster where workers run; raises as ``Cluster``."""
    return Cluster("workers", address, "leave --workers out")


class Worker:
    """One process with models of its own, which are loaded with the first unit."""

    def __init__(self, models: Models, settings: "Settings", info: RunInfo, number: int) -> None:
        self.models, self.settings, self.info = models, settings, info
        self.name, self.warm = f"ray-{number}", False

    @cached_property
    def bench(self) -> Workbench:
        """The models, which all use one curve.

        Raises ValueError where this machine has other weights of the name.
        """
        bench = Workbench(self.models, self.settings)
        for name, value in digests(bench).items():
            if getattr(self.info, name) not in (None, value):
                raise ValueError(
                    f"{self.name} on {socket.gethostname()} has other {name} than the run; bring"
                    " the same files to every machine"
                )
        bench.use_curve(self.info.curve)
        return bench

    def measure(self, unit: Unit) -> list[Record]:
        """The records of a unit; the first one is warmed up for."""
        if not self.warm and unit.kind == "turns":
            self.bench.warm_up(unit.cells, self.bench.encode(unit.prompts[0][1]))
        self.warm = True
        return measure(self.bench, unit, worker=self.name)


@contextmanager
def spread(
    order: "Order",
    units: Sequence[Unit],
    device: str,
    info: RunInfo,
    say: Callable[[str], None],
) -> Iterator[Iterator[list[Record]]]:
    """The records of the units in the order in which they are done.

    Args:
        order: what is measured, and by how many workers where.
        units: what is left of it.
        device: kind of what the model runs on; each worker has one, a GPU for itself alone.
        info: of the run; all workers take its curve, the cost of a pass of the target, and must
            have its weights.
        say: told in one line where workers must wait for the cluster.

    Raises:
        ImportError: without Ray.
        OSError: where the cluster cannot be reached or a worker dies; what was measured is kept.
        ValueError: where the machine or the cluster is too small.
    """
    cluster, count = cluster_at(order.ray_address), min(order.workers, len(units))
    ray = cluster.ray
    needs = {"CPU": order.models.threads or 1, "GPU": int(device == "cuda")}
    cluster.connect(order.workers * needs["CPU"])
    try:
        cluster.require_room(count, needs)
        if order.ray_address:
            _tell_of_waiting(ray, count, needs, say)
        remote = ray.remote(num_cpus=needs["CPU"], num_gpus=needs["GPU"])(Worker)
        # Ray says which GPU is a worker's
        models = replace(_found_anywhere(order.models), device=device)
        workers = [
            remote.remote(models, order.protocol.settings, info, number) for number in range(count)
        ]
        pool = ray.util.ActorPool(workers)
        yield _results(ray, pool, units)
    finally:
        ray.shutdown()


def _tell_of_waiting(
    ray: Any, count: int, needs: dict[str, int], say: Callable[[str], None]
) -> None:
    """Others may use the cluster too."""
    total, free = ray.cluster_resources(), ray.available_resources()
    for kind, need in needs.items():
        has = int(free.get(kind, 0))
        if has < count * need:
            all_of_them = int(total.get(kind, 0))
            say(
                f"waiting for the cluster: {has} of {all_of_them} {kind}s are free, {count * need}"
                " are needed"
            )


def _found_anywhere(models: Models) -> Models:
    """The same models where folders are named from another directory than this one."""
    return replace(models, **models.from_anywhere())


def _results(ray: Any, pool: Any, units: Sequence[Unit]) -> Iterator[list[Record]]:
    try:
        yield from pool.map_unordered(lambda worker, unit: worker.measure.remote(unit), units)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else OSError(str(error)) from error
    except ray.exceptions.RayError as error:
        lines = str(error).strip().splitlines()
        raise OSError(
            f"a worker died: {lines[0]} {lines[-1].strip()[:200]}; the same command goes on"
        ) from error
