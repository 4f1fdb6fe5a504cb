"""Many requests at once: batches of a fixed size, and requests that arrive at random times."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from draftwood import engine
from draftwood.engine import run_all
from draftwood.stats import Stats, Step
from draftwood_bench.plan.configurations import Configuration
from draftwood_bench.plan.units import Unit
from draftwood_bench.records.files import Record
from draftwood_bench.run.recording import identity, record
from draftwood_bench.run.workbench import Workbench


@dataclass
class Job:
    """One request and its times, in seconds from the start of the configuration."""

    sequence: engine.Sequence
    arrived: float
    started: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0
    steps: list[Step] = field(default_factory=list)

    def take(self, step: Step, now: float) -> None:
        """Record a step and its time."""
        self.steps.append(step)
        if step.is_prefill:
            self.first_token = now
        self.finished = now


def under_load(bench: Workbench, unit: Unit, worker: str) -> list[Record]:
    """Records of a configuration; a greedy text must be the same as when it is decoded alone."""
    (cell,) = unit.cells
    prompts = [bench.encode(prompt) for _, prompt in unit.prompts]
    seeds = [unit.seed(bench.settings.seed, number) for number, _ in unit.prompts]
    bench.warm_up([cell], prompts[0])
    jobs = _run(bench, cell, prompts, unit.temperature, seeds)
    found = []
    for (number, prompt), tokens, job in zip(unit.prompts, prompts, jobs, strict=True):
        token_ids = bench.tokens_of(job.steps)
        times = {
            name: round(getattr(job, name), 6)
            for name in ("arrived", "started", "first_token", "finished")
        }
        more: dict = {"token_ids": token_ids, "text": bench.text(token_ids), "worker": worker}
        if unit.temperature == 0.0:
            more |= identity(bench, bench.plain.model, tokens, bench.plain_text(tokens), token_ids)
        more |= {
            "stats": Stats.of(job.steps).as_json(),
            "load": {"batch": cell.batch, "rate": cell.rate, **times},
        }
        more["seconds_end_to_end"] = round(job.finished - job.arrived, 6)
        found.append(record(bench, cell, unit, number, prompt, 0, tokens, **more))
    return found


def _run(
    bench: Workbench,
    cell: Configuration,
    prompts: Sequence[Sequence[int]],
    temperature: float,
    seeds: Sequence[int],
) -> list[Job]:
    method, model, ends = bench.using(cell).method, bench.plain.model, bench.plain.end_tokens

    def sequence(number: int) -> engine.Sequence:
        options = bench.options(temperature, seeds[number], ends)
        return engine.Sequence(model, method.drafter, method.verifier, prompts[number], options)

    assert cell.batch is not None  # every configuration of this protocol has one
    began = time.perf_counter()
    if cell.rate is None:
        return list(_in_batches(sequence, len(prompts), cell.batch, began))
    return _arriving(sequence, arrivals(len(prompts), cell.rate, seeds[0]), cell.batch, began)


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Seconds at which requests arrive: a Poisson process, the first at once."""
    chance, times = random.Random(seed), [0.0]
    while len(times) < count:
        times.append(times[-1] + chance.expovariate(rate))
    return times[:count]


def _in_batches(
    sequence: Callable[[int], engine.Sequence], count: int, batch: int, began: float
) -> Iterator[Job]:
    """Run batches one after the other; the requests of a batch arrive together."""
    for first in range(0, count, batch):
        now = time.perf_counter() - began
        jobs = [
            Job(sequence(number), now, now) for number in range(first, min(first + batch, count))
        ]
        for number, step in run_all([job.sequence for job in jobs]):
            jobs[number].take(step, time.perf_counter() - began)
        yield from jobs


def _arriving(
    sequence: Callable[[int], engine.Sequence], times: Sequence[float], requests: int, began: float
) -> list[Job]:
    """Add requests to the batch as they arrive, while it has room."""
    jobs: list[Job] = []
    with closing(engine.Scheduler(engine.Limits(requests=requests))) as batch:
        while len(jobs) < len(times) or batch:
            now = time.perf_counter() - began
            if not batch and times[len(jobs)] > now:
                time.sleep(times[len(jobs)] - now)
                continue
            while len(jobs) < len(times) and times[len(jobs)] <= now and len(batch) < requests:
                jobs.append(Job(sequence(len(jobs)), times[len(jobs)], now))
                batch.add(jobs[-1].sequence)
            for event in batch.step():
                if event.error is not None:
                    raise event.error
                if event.progress is not None:
                    jobs[event.number].take(event.progress, time.perf_counter() - began)
    return jobs
