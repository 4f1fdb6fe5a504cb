"""Requests of several threads on one model: each text is its own, nothing crashes, nothing waits
for ever.
"""

import faulthandler
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import pytest
import torch
from transformers import LlamaForCausalLM

import draftwood
from draftwood import methods
from draftwood.costs import calibration
from draftwood.costs.curve import Curve
from draftwood.drafters import MultiSource
from draftwood.drafters.drafter import DraftRequest, VerifiedTree
from draftwood.methods import Method
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.sources import EarlierTexts, NGrams, Suffix
from draftwood.sources.source import TargetUpdate
from draftwood.testing import tiny_llama
from draftwood.text.language_model import LanguageModel
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers import Match, Verifier
from draftwood.verifiers.verifier import NodeProbs, Verdict
from draftwood_methods.drafters.token_recycling import TokenRecycling
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel
from letters import letters
from reference.sessions import InPython, start

THREADS = 8
DEADLINE = 60.0  # seconds; a request takes some milliseconds
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._"

needs_library = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
PATHS = [pytest.param(NativeModel, marks=needs_library), LeanModel, TransformersModel]
METHODS = ["plain", "auto", "lookup", "rsd-s", "layer-skip"]


class FaultError(Exception):
    """Error that a part of a method raises in the middle of a text."""


@dataclass(frozen=True)
class Failing:
    """A verifier for one request that raises at its third step."""

    name: ClassVar[str] = "failing"
    inner: Verifier
    steps: list[None] = field(default_factory=list)

    @property
    def exact_for(self) -> frozenset[Draw]:
        return self.inner.exact_for

    def __call__(self, tree: DraftTree, target: NodeProbs, rng: Rng) -> Verdict:
        self.steps.append(None)
        if len(self.steps) == 3:
            raise FaultError
        return self.inner(tree, target, rng)


@dataclass(frozen=True)
class Job:
    """One request.

    Attributes:
        ends: ``whole`` runs to its end, ``closed`` and ``dropped`` are left after two pieces,
            ``fails`` raises then.
    """

    prompt: list[int]
    tokens: int
    temperature: float
    seed: int
    ends: str = "whole"


def jobs_of(seed: int, count: int) -> list[Job]:
    """Requests of all lengths, so that the cache grows and shrinks while others run."""
    chance = random.Random(seed)
    jobs = []
    for number in range(count):
        length = chance.choice([2, 5, 9, 40, 130, 300])
        prompt = [chance.randrange(64) for _ in range(1 + length // 3)] * 3
        ends = ["whole", "whole", "closed", "whole", "dropped", "fails"][number % 6]
        jobs.append(
            Job(
                prompt,
                chance.choice([4, 8, 16]),
                chance.choice([0.0, 0.8]),
                chance.randrange(999),
                ends,
            )
        )
    return jobs


def language_model(path: Callable[[LlamaForCausalLM], Model], method: str) -> LanguageModel:
    target = path(tiny_llama(layers=4))
    plain = LanguageModel(target, letters(LETTERS), methods.build("plain", target), "tiny")
    return plain.with_method(
        method, path(tiny_llama(seed=1, layers=1)) if method == "rsd-s" else None
    )


def failing(lm: LanguageModel) -> LanguageModel:
    return lm.with_method(Method(lm.method.drafter, Failing(lm.method.verifier), lm.method.name))


def written(lm: LanguageModel, job: Job) -> list[int]:
    """The text of a request as far as it goes."""
    options = {"max_new_tokens": job.tokens, "temperature": job.temperature, "seed": job.seed}
    stream = (failing(lm) if job.ends == "fails" else lm).stream(job.prompt, **options)
    stream.sequence.tell_within = 0.0  # where it is broken off does not depend on the time
    try:
        for number, _ in enumerate(stream):
            if job.ends in ("closed", "dropped") and number == 1:
                break
    except FaultError:
        pass
    tokens = stream.result.token_ids
    if job.ends == "closed":
        stream.close()
    return tokens


def in_threads(tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks side by side; raises what one raises, and fails where they do not end."""
    errors: list[BaseException] = []
    begin = threading.Barrier(len(tasks))

    def guarded(task: Callable[[], None]) -> None:
        begin.wait()
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    end = time.monotonic() + DEADLINE
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        pytest.fail(f"{sum(thread.is_alive() for thread in threads)} threads wait for ever")
    if errors:
        raise errors[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.usefixtures("unchecked")
def test_texts_beside_others_are_those_written_alone(
    path: Callable[[LlamaForCausalLM], Model], method: str
) -> None:
    assert faulthandler.is_enabled()
    jobs = jobs_of(0, 12)
    alone = language_model(path, method)
    wanted = [written(alone, job) for job in jobs]
    assert len({len(text) for text in wanted}) > 3  # whole ones of three lengths, and broken ones
    lm = language_model(path, method)
    wrong: list[tuple[int, list[int]]] = []

    def task(number: int) -> None:
        for place in random.Random(number).sample(range(len(jobs)), 5):
            text = written(lm, jobs[place])
            if text != wanted[place]:
                wrong.append((place, text))

    in_threads([partial(task, number) for number in range(THREADS)])
    assert not wrong, f"{len(wrong)} of {THREADS * 5} texts are wrong"
    assert not lm.model.pool.used
    if method == "rsd-s":
        assert not lm.method.drafter.model.pool.used


@pytest.mark.parametrize("method", ["lookup", "rsd-s"])
@pytest.mark.usefixtures("unchecked")
def test_the_hook_writes_the_same_texts_in_threads(method: str) -> None:
    model = tiny_llama(layers=4)
    draft = tiny_llama(seed=1, layers=1) if method == "rsd-s" else None
    chance = random.Random(1)
    prompts = [
        torch.tensor([[chance.randrange(64) for _ in range(length)]] * 2)
        for length in (3, 40, 130, 300)
    ]
    wanted = [
        model.generate(prompt, do_sample=False, max_new_tokens=6).tolist() for prompt in prompts
    ]
    shared, wrong = draftwood.custom_generate(method, draft_model=draft), []

    def task(number: int) -> None:
        # with a cache of its own on the same module
        own = draftwood.custom_generate(method, draft_model=draft)
        for place in random.Random(number).sample(range(4), 4):
            hook = own if place == 0 else shared
            text = model.generate(
                prompts[place], do_sample=False, max_new_tokens=6, custom_generate=hook
            )
            if text.tolist() != wanted[place]:
                wrong.append(place)

    in_threads([partial(task, number) for number in range(THREADS)])
    assert not wrong


SHARED = {
    "earlier texts": lambda: MultiSource(
        (Suffix(), InPython(EarlierTexts(max_tokens=900, shortest=1)))
    ),
    "earlier texts in C++": lambda: MultiSource(
        (Suffix(), EarlierTexts(max_tokens=900, shortest=1))
    ),
    "n-grams in Python": lambda: MultiSource(
        (InPython(EarlierTexts()), InPython(NGrams(max_contexts=40, keep=True)))
    ),
    "n-grams in C++": lambda: MultiSource((Suffix(), NGrams(max_contexts=40, keep=True))),
    "token recycling": lambda: TokenRecycling(keep=True),
}


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.usefixtures("unchecked")
def test_drafters_that_remember_requests_may_be_shared(name: str) -> None:
    lm = language_model(LeanModel, "plain")
    jobs = [replace(job, ends="whole") for job in jobs_of(2, 6)]
    wanted = [written(lm, job) for job in jobs]
    sharing, wrong = lm.with_method(Method(SHARED[name](), Match())), []

    def task(number: int) -> None:
        for place in random.Random(number).sample(range(len(jobs)), 4):
            if written(sharing, jobs[place]) != wanted[place]:
                wrong.append(place)

    in_threads([partial(task, number) for number in range(THREADS)])
    assert not wrong


def test_what_a_run_costs_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[float] = []

    def slowly(model: Model, seconds: float) -> Curve:
        time.sleep(0.05)
        measured.append(seconds)
        return Curve((1, 8), (0.01, 0.011))

    monkeypatch.setattr(calibration, "measure", slowly)
    lm = language_model(LeanModel, "plain")
    in_threads([partial(lm.with_method, "auto") for _ in range(THREADS)])
    assert len(measured) == 1


@pytest.mark.model
def test_the_built_in_model_writes_the_same_texts_in_threads() -> None:
    lm = draftwood.load("smollm2-135m")
    questions = [
        "Name three animals.",
        "Count from one to nine.",
        "What is rain?",
        "Say hello. " * 40,
    ]
    options = {"max_new_tokens": 12}
    wanted = [
        lm.with_method("plain").generate(question, **options).token_ids for question in questions
    ]
    wrong: list[str] = []

    def task(number: int) -> None:
        question, method = questions[number % 4], ("auto", "lookup")[number // 4]
        if lm.with_method(method).generate(question, **options).token_ids != wanted[number % 4]:
            wrong.append(question)

    in_threads([partial(task, number) for number in range(THREADS)])
    assert not wrong


@pytest.mark.usefixtures("unchecked")
def test_earlier_texts_are_read_while_others_are_taken_in() -> None:
    drafter, usual = EarlierTexts(), sys.getswitchinterval()
    request = DraftRequest(Sampling(), Rng(0), LeanModel(tiny_llama(layers=1)).start())

    def task(number: int) -> None:
        chance = random.Random(number)
        for _ in range(12):
            session = start(drafter, request)
            for _ in range(20):
                session.learn(
                    TargetUpdate(
                        VerifiedTree(
                            DraftTree.chain([chance.randrange(60) for _ in range(30)]), range(30)
                        ),
                        Sampling(),
                    )
                )
                [session.candidates(session.advance((0, 2), token)) for token in range(60)]

    sys.setswitchinterval(1e-6)
    try:
        in_threads([partial(task, number) for number in range(THREADS)])
    finally:
        sys.setswitchinterval(usual)
