"""Resources that workers ask of Ray, without Ray: a GPU each where the model runs on one, and never
more than there is.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftwood import cluster
from draftwood_bench.plan.models import Models
from draftwood_bench.plan.order import Order
from draftwood_bench.plan.protocols import SpecBench
from draftwood_bench.plan.units import Unit
from draftwood_bench.run import workers
from draftwood_bench.run.runner import run
from making import run_info

CPU, CUDA = "cpu", "cuda"
UNITS = [Unit("turns", (), (), 0.0, turn) for turn in range(3)]


class Ray(SimpleNamespace):
    """A cluster of nodes with these resources; it remembers what workers asked for, and with which
    models.
    """

    def __init__(self, *nodes: dict[str, float], free: dict[str, float] | None = None) -> None:
        self.asked, self.models, self.ended = {}, [], False
        there = [{"Alive": True, "Resources": node} for node in nodes]
        total = {kind: sum(node.get(kind, 0) for node in nodes) for node in nodes for kind in node}
        super().__init__(
            init=lambda **_: None,
            nodes=lambda: there,
            cluster_resources=lambda: total,
            available_resources=lambda: total if free is None else free,
            util=SimpleNamespace(ActorPool=lambda found: found),
        )

    def remote(self, **asked: Any) -> Any:
        self.asked = asked
        return lambda kind: SimpleNamespace(remote=lambda models, *_: self.models.append(models))

    def shutdown(self) -> None:
        self.ended = True


def spread(
    monkeypatch: pytest.MonkeyPatch, ray: Ray, device: str, count: int, **more: Any
) -> list[str]:
    """Start the workers; the lines that the user is told."""
    monkeypatch.setattr(cluster, "_ray_for", lambda who, otherwise: ray)
    order, told = Order(SpecBench(), Models("tiny", threads=2), Path(), workers=count, **more), []
    with workers.spread(order, UNITS, device, run_info(), told.append):
        pass
    return told


@pytest.mark.parametrize(("device", "gpus"), [(CPU, 0), (CUDA, 1)])
def test_each_worker_has_a_gpu_where_the_model_runs_on_one(
    monkeypatch: pytest.MonkeyPatch, device: str, gpus: int
) -> None:
    ray = Ray({"CPU": 4, "GPU": 2})
    assert spread(monkeypatch, ray, device, 2) == []
    assert ray.asked == {"num_cpus": 2, "num_gpus": gpus}
    # a worker sees its own GPU alone
    assert [models.device for models in ray.models] == [device] * 2
    assert ray.ended


def test_workers_without_a_gpu_for_each_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    words = (
        r"2 workers with 2 threads and a GPU each do not fit this machine, which has 4 CPUs and 1"
        r" GPUs; .*cpu"
    )
    with pytest.raises(ValueError, match=words):
        spread(monkeypatch, ray := Ray({"CPU": 4, "GPU": 1}), CUDA, 2)
    assert ray.ended
    assert not ray.models
    apart = Ray({"CPU": 4}, {"CPU": 1, "GPU": 2})  # CPUs on one machine, GPUs on the other
    with pytest.raises(ValueError, match=r"the cluster, which has 4 \+ 1 CPUs and 0 \+ 2 GPUs"):
        spread(monkeypatch, apart, CUDA, 2, ray_address="auto")
    assert spread(monkeypatch, apart, CPU, 2, ray_address="auto") == []


def test_waiting_for_the_gpus_of_others_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Ray({"CPU": 4, "GPU": 2}, free={"CPU": 4})
    assert spread(monkeypatch, busy, CUDA, 2, ray_address="auto") == [
        "waiting for the cluster: 0 of 2 GPUs are free, 2 are needed"
    ]


def test_one_gpu_cannot_be_every_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_ray_for", lambda who, otherwise: Ray())
    with pytest.raises(
        ValueError, match=r"cuda:1 cannot be for all; say --device cuda, .* CUDA_VISIBLE_DEVICES"
    ):
        run(Order(SpecBench(), Models("tiny", device="cuda:1"), tmp_path, workers=2))


def test_a_worker_with_other_weights_of_the_name_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        workers, "digests", lambda bench: {"weights": "other", "draft_weights": None}
    )
    monkeypatch.setattr(
        workers, "Workbench", lambda models, settings: SimpleNamespace(use_curve=lambda curve: None)
    )
    for known in (None, "other"):  # earlier versions did not tell
        assert workers.Worker(
            Models("tiny"), SpecBench().settings, run_info(weights=known), 0
        ).bench
    worker = workers.Worker(Models("tiny"), SpecBench().settings, run_info(weights="pinned"), 0)
    with pytest.raises(
        ValueError, match=r"ray-0 on .* has other weights than the run; bring the same files"
    ):
        _ = worker.bench
