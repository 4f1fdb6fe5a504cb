"""Aggregate the metrics of several replicas."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

CREATED = "_created"  # times, of which there is no sum
HANDED_OVER = "Requests that a full replica refused, counted there, and another one was asked."


@dataclass
class MetricFamily:
    """A metric's samples, by name and labels."""

    about: str
    kind: str
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)


class AggregatedMetrics:
    """Sum the metrics of all replicas, ended ones included, so that no counter ever falls.

    Counts of a replica after its page was last read are lost with it.
    """

    def __init__(self) -> None:
        self._newest: dict[int, str] = {}
        self._past: dict[str, MetricFamily] = {}
        self._ended: set[int] = set()

    def page(
        self, pages: Mapping[int, str], living: Iterable[int], restarts: int, handovers: int = 0
    ) -> bytes:
        """Aggregated metrics in Prometheus' text format.

        Args:
            pages: read just now, by the replica's name; one that did not answer is left out.
            living: names of replicas that run.
            restarts: replicas that ended.
            handovers: requests that a replica refused and another one was asked.
        """
        # pages that were asked for together may come in another order
        self._newest |= {name: page for name, page in pages.items() if name not in self._ended}
        alive = set(living) - self._ended
        for name in [name for name in self._newest if name not in alive]:
            _add(self._past, self._newest.pop(name), ended=True)
            self._ended.add(name)
        total = {
            name: MetricFamily(each.about, each.kind, dict(each.samples))
            for name, each in self._past.items()
        }
        for page in self._newest.values():
            _add(total, page)
        for name, kind, about, value in (
            ("replicas", "gauge", "Replicas that run.", len(alive)),
            ("replica_restarts", "counter", "Replicas that ended.", restarts),
            ("replica_handovers", "counter", HANDED_OVER, handovers),
        ):
            sample = f"draftwood:{name}" + "_total" * (kind == "counter")
            samples = {(sample, ()): float(value)}
            total[f"draftwood:{name}"] = MetricFamily(about, kind, samples)
        return generate_latest(_Collected(total))


def _add(total: dict[str, MetricFamily], page: str, ended: bool = False) -> None:
    """Add a page; of an ended replica only counters stay, not gauges."""
    for metric in text_string_to_metric_families(page):
        if metric.name.endswith(CREATED) or (ended and metric.type == "gauge"):
            continue
        family = total.setdefault(metric.name, MetricFamily(metric.documentation, metric.type))
        for sample in metric.samples:
            key = (sample.name, tuple(sample.labels.items()))
            if not sample.name.endswith(CREATED):
                family.samples[key] = family.samples.get(key, 0.0) + sample.value


class _Collected(Collector):
    def __init__(self, families: Mapping[str, MetricFamily]) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        for name, family in self.families.items():
            metric = Metric(name, family.about, family.kind)
            for (sample, labels), value in family.samples.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric
