"""Aggregated metrics of replicas."""

from types import SimpleNamespace
from typing import Any, cast

from draftwood_serve.aggregate import AggregatedMetrics
from draftwood_serve.metrics import MetricFamilies, Metrics

COUNTED = ("restarts", "handovers")


def page(tokens: int, running: int, seconds: float) -> str:
    families = MetricFamilies()
    metrics = Metrics(families, "m")
    metrics.count(
        cast(Any, SimpleNamespace(tokens=[1] * tokens, drafted=3, accepted=2, seconds={}))
    )
    metrics.load(running, 0)
    metrics.step(seconds)
    return families.page().decode()


def values(told: bytes) -> dict[str, float]:
    lines = [line for line in told.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_everything_is_summed() -> None:
    told = values(AggregatedMetrics().page({0: page(5, 2, 0.001), 1: page(7, 1, 0.01)}, [0, 1], 4))
    assert told['draftwood:generation_tokens_total{model="m"}'] == 12
    assert told['draftwood:texts_running{model="m"}'] == 3
    assert (
        told['draftwood:spec_decode_num_accepted_tokens_per_pos_total{model="m",position="1"}'] == 2
    )
    assert told['draftwood:step_seconds_count{model="m"}'] == 2
    assert told['draftwood:step_seconds_bucket{le="0.001",model="m"}'] == 1
    assert told['draftwood:step_seconds_bucket{le="+Inf",model="m"}'] == 2
    assert round(told['draftwood:step_seconds_sum{model="m"}'], 6) == 0.011
    assert told["draftwood:replicas"] == 2
    assert told["draftwood:replica_restarts_total"] == 4
    assert not [name for name in told if "_created" in name]


def test_names_and_types_are_those_of_one_server() -> None:
    def heads(told: str) -> set[str]:
        lines = told.splitlines()
        return {line for line in lines if line.startswith("# TYPE") and "_created" not in line}

    one = page(1, 1, 0.1)
    summed = AggregatedMetrics().page({0: one, 1: one}, [0, 1], 0).decode()
    counters = [f"# TYPE draftwood:replica_{name}_total counter" for name in COUNTED]
    own = {"# TYPE draftwood:replicas gauge", *counters}
    assert heads(summed) == heads(one) | own


def test_a_replica_that_ended_is_counted_once_whichever_page_comes_last() -> None:
    metrics = AggregatedMetrics()
    both = {0: page(5, 2, 0.001), 1: page(7, 1, 0.01)}
    metrics.page(both, [0, 1], 0)
    for pages, living in (({0: both[0]}, [0]), (both, [0, 1]), ({0: both[0]}, [0])):
        told = values(metrics.page(pages, living, 1))
        assert told['draftwood:generation_tokens_total{model="m"}'] == 12
        assert told["draftwood:replicas"] == 1


def test_counters_of_a_replica_that_ended_stay() -> None:
    metrics = AggregatedMetrics()
    metrics.page({0: page(5, 2, 0.001), 1: page(7, 1, 0.01)}, [0, 1], 0)
    for _ in range(2):
        told = values(metrics.page({1: page(8, 1, 0.01), 2: page(1, 1, 0.5)}, [1, 2], 1))
        assert told['draftwood:generation_tokens_total{model="m"}'] == 5 + 8 + 1
        assert told['draftwood:texts_running{model="m"}'] == 2
        assert told['draftwood:step_seconds_count{model="m"}'] == 3
    assert values(metrics.page({}, [], 3))['draftwood:generation_tokens_total{model="m"}'] == 14


def test_a_replica_that_does_not_answer_counts_as_before() -> None:
    metrics = AggregatedMetrics()
    metrics.page({0: page(5, 2, 0.001), 1: page(7, 1, 0.01)}, [0, 1], 0)
    told = values(metrics.page({1: page(9, 1, 0.01)}, [0, 1], 0))
    assert told['draftwood:generation_tokens_total{model="m"}'] == 14
    assert told["draftwood:replicas"] == 2
