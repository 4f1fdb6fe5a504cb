"""A store of prefixes serves the model that it was made for; all others are refused by name."""

import gc
import sys
from collections.abc import Callable

import pytest
import torch

from draftwood import methods
from draftwood.costs.curve import Curve
from draftwood.costs.following import Following
from draftwood.drafters import Drafter, Nothing, PromptLookup
from draftwood.engine import (
    Limits,
    Method,
    Options,
    ParallelSampling,
    Scheduler,
    Sequence,
    run_all,
)
from draftwood.engine.task import Pace, StepBudget
from draftwood.models.fingerprint import Fingerprint
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.models.native.prefixes import Prefixes
from draftwood.models.shared import SharedPasses
from draftwood.native import library
from draftwood.sampling import PassTime, Sampling
from draftwood.stats import Step
from draftwood.testing import TableModel, tiny_llama
from draftwood.verifiers import Match
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel
from tiny_heads import TINY

pytestmark = pytest.mark.skipif(not library.available(), reason="needs a C++ compiler")

PROMPT = [3, 5, 7, 11, 3, 5, 7, 2] * 12
OTHERS: dict[str, Callable[[], Model]] = {
    "other weights": lambda: NativeModel(tiny_llama(1), "float32"),
    "more layers": lambda: NativeModel(tiny_llama(0, layers=3), "float32"),
    "wider": lambda: NativeModel(tiny_llama(0, dim=64), "float32"),
    "a larger vocabulary": lambda: NativeModel(tiny_llama(0, vocab=80), "float32"),
    "rounded weights": lambda: NativeModel(tiny_llama(0), "int8"),
    "a cache of bytes": lambda: NativeModel(tiny_llama(0), "float32", cache="int8"),
    "in PyTorch": lambda: LeanModel(tiny_llama(0)),
    "in Transformers": lambda: TransformersModel(tiny_llama(1)),
}


def sequence(
    model: Model, store: Prefixes | None = None, drafter: Drafter | None = None, seed: int = 1
) -> Sequence:
    options = Options(max_new_tokens=40, seed=seed, prefixes=store)
    return Sequence(model, drafter or Nothing(), Match(), PROMPT, options)


def text(task: Sequence) -> list[int]:
    return [token for _, step in run_all([task]) for token in step.tokens]


@pytest.fixture
def store() -> Prefixes:
    """One that knows the prompt."""
    store = Prefixes(NativeModel(tiny_llama(0), "float32"))
    text(sequence(store.model, store))
    assert len(store) >= len(PROMPT) // 32
    return store


@pytest.mark.parametrize("case", OTHERS)
def test_other_models_are_refused_in_one_error_that_names_both(store: Prefixes, case: str) -> None:
    other = OTHERS[case]()
    names = rf"for {store.fingerprint}, and {Fingerprint.of(other)} writes".replace("(", r"\(")
    message = names.replace(")", r"\)") + ".*one store per model"
    with pytest.raises(ValueError, match=message):
        text(sequence(other, store))
    session = other.start()
    session.extend(PROMPT)
    with pytest.raises(ValueError, match="one store per model"):
        store.remember(session, PROMPT)
    assert store.model.pool.used_blocks == 0  # what was begun was closed


def test_prompts_that_are_known_begin_in_one_step_where_a_step_has_time(store: Prefixes) -> None:
    """Each runs its last row alone; a full step is one whose prompt has rows left."""
    batch = Scheduler[Step](Limits(pace=Pace(lambda rows: 1e-3 * rows, 20e-3)))
    tasks = [sequence(store.model, store, seed=seed) for seed in range(4)]
    for task in tasks:
        batch.add(task)
    batch.step()
    assert [task.prefill.reused for task in tasks] == [len(PROMPT) - 1] * 4
    assert [task.emitted for task in tasks] == [1] * 4
    batch.close()


def alone(model: Model, prompt: list[int]) -> list[int]:
    return text(Sequence(model, Nothing(), Match(), prompt, Options(max_new_tokens=8, seed=2)))


def test_prompts_that_come_together_share_what_one_of_them_has_computed() -> None:
    """The later one looks again at each part of its own."""
    model = NativeModel(tiny_llama(0, context=512), "float32")
    store, batch = Prefixes(model), Scheduler[Step](Limits(prompt_rows=64))
    prompts = [[*PROMPT, *PROMPT, 9, 9, last, 5] for last in (1, 2, 3)]
    tasks = [
        Sequence(model, Nothing(), Match(), each, Options(max_new_tokens=8, seed=2, prefixes=store))
        for each in prompts
    ]
    for task in tasks:
        batch.add(task)
    found: list[list[int]] = [[], [], []]
    while batch:
        for event in batch.step():
            found[event.number] += [] if event.progress is None else event.progress.tokens
    assert found == [alone(model, each) for each in prompts]
    assert tasks[0].prefill.reused == 0
    assert min(task.prefill.reused for task in tasks[1:]) >= 64


def test_a_store_is_asked_once_before_each_part_of_a_prompt(
    store: Prefixes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    known = Prefixes._known

    def noted(self: Prefixes, tokens: list[int], salt: str) -> object:
        asked.append(len(tokens))
        return known(self, tokens, salt)

    monkeypatch.setattr(Prefixes, "_known", noted)
    task = Sequence(store.model, Nothing(), Match(), [*PROMPT, *PROMPT], Options(prefixes=store))
    for parts in (1, 2):
        inputs = task.plan(StepBudget(prompt_rows=20))
        assert asked == [2 * len(PROMPT) - 1] * parts
        task.commit(inputs[0].runner.forward(inputs), 1.0)
    task.close()


OVER_HEADS = {
    **{name: name for name in ("eagle", "medusa", "hydra", "ctc", "ctc-paper", "ctc-raw", "lm")},
    **{"eagle-rsd": "eagle", "ctc-rsd": "ctc", "lm-rsd": "lm"},
    **dict.fromkeys(("speculative", "spectr", "specinfer", "rsd-c", "rsd-s", "block"), "eagle"),
}
"""Kinds of heads by the methods that draft with them."""
DRAWS_BY_STATES = OVER_HEADS.keys() - {"lm-rsd"} - set(OVER_HEADS.values())
"""Methods whose drawn texts depend on drafts, and these on all of the prompt's states."""


def over_a_head(name: str, model: Model, in_pytorch: bool) -> Method:
    method = methods.build(name, model, head=TINY[OVER_HEADS[name]](model))
    assert getattr(method.drafter, "native", None) is not None
    if in_pytorch:
        object.__setattr__(method.drafter, "native", None)
    return method


def written(
    model: Model, method: Method, temperature: float, stores: list[Prefixes | None]
) -> list[tuple[list[list[int]], int]]:
    """Texts that begin together, by turns, and tokens that the last one did not run; of each store.

    The second goes on where the first one ended, and the third comes with it.
    """
    sampler, found = Sampling(temperature), list[tuple[list[list[int]], int]]()
    for store in stores:
        options = Options(max_new_tokens=24, seed=3, sampler=sampler, prefixes=store)
        first = Sequence(model, method.drafter, method.verifier, PROMPT, options)
        texts = [text(first)]
        batch = Scheduler[Step](Limits(prompt_rows=40))
        longer = [*PROMPT, *texts[0], *PROMPT]
        tasks = [
            Sequence(model, method.drafter, method.verifier, [*longer, last, 5], options)
            for last in (1, 2)
        ]
        for task in tasks:
            batch.add(task)
        texts += [[], []]
        while batch:
            for event in batch.step():
                texts[1 + event.number] += [] if event.progress is None else event.progress.tokens
        found.append((texts, tasks[1].prefill.reused))
    return found


@pytest.mark.parametrize("in_pytorch", [False, True], ids=["native", "pytorch"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", OVER_HEADS)
def test_a_head_begins_behind_what_is_known_and_no_text_becomes_another(
    name: str, temperature: float, in_pytorch: bool
) -> None:
    model = NativeModel(tiny_llama(0, context=512), "float32")
    method = over_a_head(name, model, in_pytorch)
    (own, _), (shared, reused) = written(model, method, temperature, [None, Prefixes(model)])
    assert shared == own
    runs_all = temperature > 0 and name in DRAWS_BY_STATES
    assert reused == 0 if runs_all else reused > len(PROMPT) + 24


class Noted:
    """A curve that notes the passes it is told of."""

    def __init__(self) -> None:
        self.passes: list[PassTime] = []

    def __call__(self, nodes: int) -> float:
        return 1e-3 * nodes

    def saw(self, took: PassTime) -> None:
        self.passes.append(took)


def test_the_curve_of_a_pace_is_told_of_every_methods_passes(store: Prefixes) -> None:
    noted = Noted()
    batch = Scheduler[Step](Limits().paced(noted, 0.05))
    batch.add(sequence(store.model))
    while batch:
        batch.step()
    assert [each.nodes for each in noted.passes] == [1] * 39


def test_seconds_learn_of_passes_where_their_type_says_so() -> None:
    noted, took = Noted(), PassTime(4, 128.0, 1.0)
    pace = Limits().paced(noted, 0.05).pace
    assert pace is not None
    pace.saw([took, took])
    assert noted.passes == [took, took]
    following = Following(Curve((1, 2), (1.0, 1.1)))
    pace = Limits().paced(following, 0.05).pace
    assert pace is not None
    assert pace.learn == following.saw
    Pace(float, 0.05).saw([took])  # which learns nothing


@pytest.mark.parametrize("drafter", [Nothing(), PromptLookup()])
def test_its_own_model_is_served_and_so_are_the_same_weights_loaded_again(
    store: Prefixes, drafter: Drafter
) -> None:
    wanted = text(sequence(store.model, drafter=drafter))
    for model in (store.model, SharedPasses(store.model), NativeModel(tiny_llama(0), "float32")):
        task = sequence(model, store, drafter)
        assert text(task) == wanted
        assert task.prefill.reused == len(PROMPT) - 1
        answers = ParallelSampling([sequence(model, store, drafter, seed) for seed in (1, 2)])
        found = [list[int](), list[int]()]
        for _, told in run_all([answers]):
            for number, step in told:
                found[number] += step.tokens
        assert found == [wanted, wanted]


def test_a_fingerprint_is_taken_once_and_of_no_model_that_has_the_cache(
    store: Prefixes, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = list[Model]()
    run = NativeModel.compute

    def counted(self: NativeModel, *given: object) -> object:
        passes.append(self)
        return run(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(NativeModel, "compute", counted)
    text(sequence(store.model, store))
    own = len(passes)
    text(sequence(store.model, store))
    assert len(passes) == 2 * own  # as many as before: none for a fingerprint
    passes.clear()
    other = NativeModel(tiny_llama(1), "float32")
    for _ in range(3):
        with pytest.raises(ValueError, match="one store per model"):
            text(sequence(other, store))
    assert passes == [store.model, other]


@pytest.mark.parametrize("kind", [LeanModel, TransformersModel])
def test_a_cache_without_blocks_holds_no_prefixes(kind: type[LeanModel]) -> None:
    with pytest.raises(ValueError, match=f"blocks of a cache.*{kind.__name__} has none; load"):
        Prefixes(kind(tiny_llama(0)))  # type: ignore[arg-type]


def test_a_session_in_another_cache_is_not_kept(store: Prefixes) -> None:
    session = NativeModel(tiny_llama(0), "float32").start()
    session.extend(PROMPT)
    with pytest.raises(ValueError, match="in this store's cache"):
        store.remember(session, PROMPT)


def test_any_model_has_a_fingerprint() -> None:
    seeds = (torch.Generator().manual_seed(seed) for seed in (0, 0, 1))
    tables = [TableModel(torch.randn(6, 6, 6, generator=seed)) for seed in seeds]
    one, same, other = map(Fingerprint.of, tables)
    assert one == same != other


def test_a_text_in_a_ring_is_ended_by_the_collector(
    store: Prefixes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector forgets who refers weakly to a text before it ends the text."""
    pool = store.model.pool
    gc.collect()
    before = pool.used
    steps = run_all([sequence(store.model, store)])
    for _ in range(3):
        next(steps)
    assert pool.used > before
    ring: list[object] = [steps]
    ring.append(ring)
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    del steps, ring
    gc.collect()
    assert not said
    assert pool.used == before
