"""Count requests and tokens: for Prometheus, and in the block that comes with each answer."""

import threading
from collections import deque
from collections.abc import Sequence
from itertools import chain
from statistics import mean
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from draftwood.learning.learning import Learning
from draftwood.stats import Stats, Step, StepCosts
from draftwood_serve.jobs import TextJob
from draftwood_serve.texts import Choice

POSITIONS = 16  # first draft tokens of steps, with acceptance counts; further ones have none
BUCKETS = 16  # of times, each twice as long as the one before
RECENT = 32  # newest requests, by which waiting times are estimated

LEARNING = {
    "buffer_rows": ("rows", "Rows of answers from which the head may learn."),
    "buffer_bytes": ("memory", "Bytes of these."),
    "steps": ("steps", "Steps of training."),
    "swaps": ("swaps", "Rounds whose weights took over."),
    "drops": ("drops", "Rounds whose weights were not better."),
}
"""Gauges of a head that learns: field of ``LearningStatus``, and meaning."""


class MetricFamilies:
    """Metrics of a server, each with the name of a model as its first label."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.drafts = self._counter("spec_decode_num_drafts", "Steps that ran draft tokens.")
        self.drafted = self._counter("spec_decode_num_draft_tokens", "Draft tokens run.")
        self.accepted = self._counter("spec_decode_num_accepted_tokens", "Draft tokens accepted.")
        self.by_place = self._counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Steps that accepted a draft token at this position.",
            "position",
        )
        self.steps = self._counter("steps", "Steps of the batch, each a round of forward passes.")
        self.phases = self._counter("step_phase_seconds", "Seconds of texts' steps.", "phase")
        self.tokens = self._counter("generation_tokens", "Tokens written.")
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts of ended requests.")
        self.requests = self._counter("requests", "Requests by their end.", "end")
        self.loads = self._counter("model_loads", "Times that the model was loaded.")
        self.loaded = self.gauge("model_loaded", "1 while the model is in memory.")
        self.running = self.gauge("texts_running", "Texts being written.")
        self.waiting = self.gauge("texts_waiting", "Texts that wait.")
        self.step_seconds = self._histogram("step_seconds", "Seconds of a step.", 0.0005)
        self.first = self._histogram("time_to_first_token_seconds", "From arrival on.", 0.005)
        self.whole = self._histogram("request_seconds", "From arrival to the end.", 0.01)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"draftwood:{name}", what, ("model", *labels), registry=self.registry)

    def gauge(self, name: str, what: str) -> Gauge:
        """Add a gauge."""
        return Gauge(f"draftwood:{name}", what, ("model",), registry=self.registry)

    def _histogram(self, name: str, what: str, least: float) -> Histogram:
        buckets = tuple(least * 2**place for place in range(BUCKETS))
        name = f"draftwood:{name}"
        return Histogram(name, what, ("model",), registry=self.registry, buckets=buckets)

    def page(self) -> bytes:
        """Metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class Metrics:
    """Counters of one model, which any thread may write and read.

    Args:
        families: of the server.
        model: name of the model.
    """

    def __init__(self, families: MetricFamilies, model: str) -> None:
        self.families, self.model = families, model
        self._drafts, self._drafted = families.drafts.labels(model), families.drafted.labels(model)
        self._accepted, self._steps = families.accepted.labels(model), families.steps.labels(model)
        self._phases = {name: families.phases.labels(model, name) for name in Stats().seconds}
        self._tokens = families.tokens.labels(model)
        self._prompt_tokens = families.prompt_tokens.labels(model)
        self._running, self._waiting = (
            families.running.labels(model),
            families.waiting.labels(model),
        )
        self._step_seconds = families.step_seconds.labels(model)
        self._first, self._whole = families.first.labels(model), families.whole.labels(model)
        self._loads, self._loaded = families.loads.labels(model), families.loaded.labels(model)
        self._lock = threading.Lock()
        self._ends: deque[float] = deque(maxlen=RECENT)  # since some request runs
        self._ran: deque[float] = deque(maxlen=RECENT)
        self._running_texts = 0

    def set_loaded(self, is_loaded: bool) -> None:
        """Record that the model came into memory, or left it."""
        self._loads.inc(is_loaded)
        self._loaded.set(is_loaded)
        self.load(0, 0)

    def count(self, step: Step) -> None:
        """Count what a step did for one text."""
        self._tokens.inc(len(step.tokens))
        if step.drafted:
            self._drafts.inc()
            self._drafted.inc(step.drafted)
            self._accepted.inc(step.accepted)
        for place in range(min(step.accepted, POSITIONS)):
            self.families.by_place.labels(self.model, str(place)).inc()
        for phase, seconds in step.seconds.items():
            self._phases["prefill" if step.is_prefill else phase].inc(seconds)

    def step(self, seconds: float, count: int = 1) -> None:
        """Count a step of the batch, or so many in a row that took these seconds together."""
        self._steps.inc(count)
        for _ in range(count):
            self._step_seconds.observe(seconds / count)

    def follow(self, learning: Learning) -> None:
        """Tell the counts of a head that learns."""
        for name, (field, what) in LEARNING.items():
            gauge = self.families.gauge(f"learning_{name}", what).labels(self.model)
            gauge.set_function(lambda field=field: getattr(learning.status, field))

    def load(self, running: int, waiting: int) -> None:
        """Record the number of running and waiting texts."""
        self._running.set(running)
        self._waiting.set(waiting)
        with self._lock:
            self._running_texts = running
            if not running:
                self._ends.clear()

    def closed(self, how: str, prompt_tokens: int, seconds: float) -> None:
        """Count a request by its end: finished, cancelled or failed."""
        self.families.requests.labels(self.model, how).inc()
        self._prompt_tokens.inc(prompt_tokens)
        self._whole.observe(seconds)

    def ended(self, job: TextJob, how: str) -> None:
        """Count a request for texts, as ``closed``, and what it says about further ones."""
        self.closed(how, job.prompt_tokens, job.ended - job.arrived)
        if job.first_token:
            self._first.observe(job.first_token - job.arrived)
        with self._lock:
            self._ends.append(job.ended)
            if job.started:
                self._ran.append(job.ended - job.started)

    def refused(self) -> None:
        """Count a request that was sent away."""
        self.families.requests.labels(self.model, "refused").inc()

    def seconds_to_place(self) -> float | None:
        """Estimate the seconds until a place comes free, by how fast requests end since some run.

        Where too few have ended, those before tell it, by how long they ran. None before any.
        """
        with self._lock:
            ends, ran = list(self._ends), list(self._ran)
            running = max(1, self._running_texts)
        if len(ends) > 1:
            return (perf_counter() - ends[0]) / (len(ends) - 1)
        return mean(ran) / running if ran else None


def block(job: TextJob) -> dict[str, Any]:
    """Metrics of one answer; milliseconds and vLLM's names."""
    stats = job.stats
    costs = step_costs(job, stats)
    now = job.ended or perf_counter()
    writing = max(now - job.first_token, 0.0) if job.first_token else 0.0
    later = stats.tokens - sum(each.first for each in job.choices)
    return {
        "seed": job.seed,
        "method": job.method,
        "queue_time_ms": _ms(job.started - job.arrived) if job.started else None,
        "time_to_first_token_ms": _ms(job.first_token - job.arrived) if job.first_token else None,
        "generation_time_ms": _ms(writing),
        "mean_itl_ms": _ms(writing * texts_at_once(job.choices) / later) if later else None,
        "tokens_per_second": round(later / writing, 3) if writing and later else None,
        "step_ms": {name: _ms(seconds) for name, seconds in costs.parts.items()} or None,
        "drafts": costs.worth,
        "speculative_decoding": _speculative(job, stats),
    }


def texts_at_once(choices: Sequence[Choice]) -> float:
    """Count texts that were written at the same time behind their first tokens, on average.

    Args:
        choices: of one request.
    """
    begun = [each for each in choices if each.began]
    spans = [each.newest - each.began for each in begun]
    whole = max(each.newest for each in begun) - min(each.began for each in begun)
    return sum(spans) / whole if whole else 1.0


def step_costs(job: TextJob, stats: Stats) -> StepCosts:
    """Costs of an average step of a request.

    Those of a text that shared passes are its part of them: they say nothing of what is between
    passes, nor whether its drafts paid.

    Args:
        stats: of all its texts.
    """
    if not (job.alone and job.ended):
        return stats.costs()
    context = job.prompt_tokens + stats.tokens / 2
    return stats.costs(job.ended - job.first_token, job.curve, context)


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
