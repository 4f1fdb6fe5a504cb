"""Count requests and tokens: for Prometheus, and in the block that comes with each answer."""

import threading
from collections import deque
from itertools import chain
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from draftwood.learning.learning import Learning
from draftwood.stats import Stats, Step
from draftwood_serve.jobs import TextJob

POSITIONS = 16  # with acceptance counts of their own; the last one holds all further ones
RECENT = 32  # newest requests, by which waiting times are estimated

LEARNING = {
    "buffer_rows": ("rows", "Rows of answers from which the head may learn."),
    "buffer_bytes": ("memory", "Bytes of these."),
    "steps": ("steps", "Steps of training."),
    "swaps": ("swaps", "Rounds whose weights took over."),
    "drops": ("drops", "Rounds whose weights were not better."),
}
"""Gauges of a head that learns: field of ``LearningStatus``, and meaning."""


class Metrics:
    """Counters of one server. Written by the thread that runs the model, read by any."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"draftwood:{name}", what, labels, registry=registry)

        self._drafts = counter("spec_decode_num_drafts", "Steps that ran draft tokens.")
        self._drafted = counter("spec_decode_num_draft_tokens", "Draft tokens run.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Draft tokens accepted.")
        self._by_place = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Steps that accepted a draft token at this position.",
            "position",
        )
        self._steps = counter("steps", "Forward passes' rounds of the batch.")
        self._tokens = counter("generation_tokens", "Tokens written.")
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts of ended requests.")
        self._requests = counter("requests", "Requests by their end.", "end")
        self._running = Gauge("draftwood:texts_running", "Texts being written.", registry=registry)
        self._waiting = Gauge("draftwood:texts_waiting", "Texts that wait.", registry=registry)
        self._step_seconds = self._histogram("step_seconds", "Seconds of a step.", 0.0005, 16)
        self._first = self._histogram("time_to_first_token_seconds", "From arrival on.", 0.005, 16)
        self._whole = self._histogram("request_seconds", "From arrival to the end.", 0.01, 16)
        self._lock = threading.Lock()
        self._ends: deque[float] = deque(maxlen=RECENT)

    def _histogram(self, name: str, what: str, least: float, count: int) -> Histogram:
        buckets = tuple(least * 2**place for place in range(count))
        return Histogram(f"draftwood:{name}", what, registry=self.registry, buckets=buckets)

    def count(self, step: Step) -> None:
        """Count what a step did for one text."""
        self._tokens.inc(len(step.tokens))
        if step.drafted:
            self._drafts.inc()
            self._drafted.inc(step.drafted)
            self._accepted.inc(step.accepted)
        for place in range(min(step.accepted, POSITIONS)):
            self._by_place.labels(str(place)).inc()

    def step(self, seconds: float) -> None:
        """Count a step of the batch."""
        self._steps.inc()
        self._step_seconds.observe(seconds)

    def follow(self, learning: Learning) -> None:
        """Tell the counts of a head that learns."""
        for name, (field, what) in LEARNING.items():
            gauge = Gauge(f"draftwood:learning_{name}", what, registry=self.registry)
            gauge.set_function(lambda field=field: getattr(learning.status, field))

    def load(self, running: int, waiting: int) -> None:
        """Record the number of running and waiting texts."""
        self._running.set(running)
        self._waiting.set(waiting)

    def ended(self, job: TextJob, how: str) -> None:
        """Count the end of a request: finished, cancelled or failed."""
        self._requests.labels(how).inc()
        self._prompt_tokens.inc(job.prompt_tokens)
        self._whole.observe(job.ended - job.arrived)
        if job.first_token:
            self._first.observe(job.first_token - job.arrived)
        with self._lock:
            self._ends.append(perf_counter())

    def refused(self) -> None:
        """Count a request that was sent away."""
        self._requests.labels("refused").inc()

    def seconds_to_place(self) -> float | None:
        """Estimate the seconds until a place comes free, by how fast the newest requests ended.

        None if too few have ended.
        """
        with self._lock:
            ends = list(self._ends)
        return (perf_counter() - ends[0]) / (len(ends) - 1) if len(ends) > 1 else None

    def page(self) -> bytes:
        """Metrics in Prometheus' text format."""
        return generate_latest(self.registry)


def block(job: TextJob) -> dict[str, Any]:
    """Metrics of one answer; milliseconds and vLLM's names."""
    stats = sum((each.stats for each in job.choices), Stats())
    now = job.ended or perf_counter()
    writing = max(now - job.first_token, 0.0) if job.first_token else 0.0
    later = stats.tokens - stats.prefills
    return {
        "seed": job.seed,
        "method": job.method,
        "queue_time_ms": _ms(job.started - job.arrived) if job.started else None,
        "time_to_first_token_ms": _ms(job.first_token - job.arrived) if job.first_token else None,
        "generation_time_ms": _ms(writing),
        "mean_itl_ms": _ms(writing / later) if later else None,
        "tokens_per_second": round(later / writing, 3) if writing and later else None,
        "speculative_decoding": _speculative(job, stats),
    }


def _speculative(job: TextJob, stats: Stats) -> dict[str, Any]:
    accepted = list(chain.from_iterable(each.accepted for each in job.choices))
    drafted = list(chain.from_iterable(each.drafted for each in job.choices))
    found: dict[str, Any] = {
        "mean_acceptance_length": round(stats.block_efficiency, 4),
        "draft_acceptance_rate": (
            round(stats.accepted / stats.drafted, 4) if stats.drafted else None
        ),
        "acceptance_histogram": [
            accepted.count(count) for count in range(max(accepted, default=-1) + 1)
        ],
        "num_spec_steps": stats.target_runs,
        "num_accepted_draft_tokens": stats.accepted,
        "num_draft_tokens": stats.drafted,
        "num_spec_tokens": max(drafted, default=0),
    }
    if job.speculation.trace:
        found["per_step_accepted"] = [each.accepted for each in job.choices]
        found["per_step_drafted"] = [each.drafted for each in job.choices]
        if len(job.choices) == 1:
            found["per_step_accepted"], found["per_step_drafted"] = accepted, drafted
    return found


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)
