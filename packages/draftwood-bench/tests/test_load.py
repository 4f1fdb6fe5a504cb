"""Requests that arrive together or one by one are answered as if they were alone."""

import itertools

import pytest

from draftwood.engine import Options, Sequence, generate
from draftwood.methods import build
from draftwood.testing import tiny_llama
from draftwood_bench.run import load
from draftwood_bench.run.load import arrivals
from draftwood_torch.models.transformers import TransformersModel

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [3, 3], [2]]
MODEL = TransformersModel(tiny_llama())
METHOD = build("lookup", MODEL)


def sequence(number: int) -> Sequence:
    return Sequence(
        MODEL, METHOD.drafter, METHOD.verifier, PROMPTS[number], Options(max_new_tokens=8 + number)
    )


def tokens_of(job: load.Job) -> list[int]:
    return [token for step in job.steps for token in step.tokens]


def alone(number: int) -> list[int]:
    options = Options(max_new_tokens=8 + number)
    steps = generate(MODEL, METHOD.drafter, METHOD.verifier, PROMPTS[number], options)
    return [token for step in steps for token in step.tokens]


def test_batches() -> None:
    jobs = list(load._in_batches(sequence, len(PROMPTS), 2, 0.0))
    assert [tokens_of(job) for job in jobs] == [alone(number) for number in range(len(PROMPTS))]
    assert jobs[0].arrived == jobs[1].arrived < jobs[2].arrived
    assert all(job.arrived <= job.started <= job.first_token <= job.finished for job in jobs)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_arrivals_join_the_batch(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    clock = itertools.count()
    monkeypatch.setattr(load.time, "perf_counter", lambda: next(clock) / 1000)
    monkeypatch.setattr(
        load.time, "sleep", lambda seconds: [next(clock) for _ in range(1 + int(1000 * seconds))]
    )
    times = [0.0, 0.01, 0.02, 0.03, 5.0]
    jobs = load._arriving(sequence, times, most, 0.0)
    assert [tokens_of(job) for job in jobs] == [alone(number) for number in range(len(PROMPTS))]
    assert [job.arrived for job in jobs] == times
    assert all(job.arrived <= job.started <= job.first_token <= job.finished for job in jobs)
    under_way = [
        sum(other.started <= job.started < other.finished for other in jobs) for job in jobs
    ]
    assert max(under_way) <= most
    assert (max(under_way) > 1) is (most > 1)


def test_arrivals_come_at_the_rate_asked_for() -> None:
    times = arrivals(2001, 4.0, seed=0)
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times[-1] == pytest.approx(500, rel=0.1)
    assert times == arrivals(2001, 4.0, seed=0) != arrivals(2001, 4.0, seed=1)
