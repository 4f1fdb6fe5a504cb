"""Steps in a row, made by one call of the library: the same steps as one by one."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from draftwood import engine
from draftwood.costs.budget import Budget
from draftwood.drafters import (
    Drafter,
    DraftModel,
    JacobiSampled,
    MultiSource,
    Nothing,
    RacedJacobi,
)
from draftwood.engine import Options
from draftwood.engine.executors import native, starting
from draftwood.engine.scheduler import Scheduler
from draftwood.models.native import NativeModel
from draftwood.native.step import RunLimits, interrupt_rows
from draftwood.sampling import Sampling
from draftwood.shapes import Shape, StochasticBeam, Widths
from draftwood.stats import Step
from draftwood.text.builder import StopStrings
from draftwood.verifiers import Match, Rejection, Traversal, Verifier
from roads import tiny_llama

PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]
Calls = list[int]
MATCH = Match()


@pytest.fixture(scope="module")
def model() -> NativeModel:
    return NativeModel(tiny_llama(0))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Count the steps that each call of the library made."""
    counts: Calls = []
    commit = native.NativeSteps.commit

    def counted(self: Any, outputs: Any, seconds: float) -> Any:
        counts.append(len(outputs[0].steps))
        return commit(self, outputs, seconds)

    monkeypatch.setattr(native.NativeSteps, "commit", counted)
    return counts


def written(
    model: NativeModel,
    drafter: Drafter,
    options: Options,
    tell_within: float = 60.0,
    verifier: Verifier = MATCH,
) -> tuple[list[Step], engine.Sequence, int]:
    """Steps of a text, the text, and tokens in its cache at the end."""
    text, length = engine.Sequence(model, drafter, verifier, PROMPT, options), 0
    text.tell_within = tell_within
    steps: list[Step] = []
    scheduler: Scheduler[Step] = Scheduler()
    number = scheduler.add(text)
    while len(scheduler):
        for event in scheduler.step():
            assert event.error is None
            steps += [] if event.progress is None else [event.progress]
        length = text.session.length
    scheduler.cancel(number)
    return steps, text, length


def told(steps: list[Step]) -> list[object]:
    """All that a step says but its seconds."""
    return [
        (each.tokens, each.accepted, each.path, each.tree and each.tree.token_list)
        for each in steps
    ]


def fixed_budget() -> Drafter:
    """Sources whose trees do not depend on how long passes take, and that never rest."""
    budget = Budget(lambda nodes: 1.0 + 0.001 * nodes, per_draft_token=0.0, per_step=0.0)
    return MultiSource(budget=budget)


with_and_without_drafts = pytest.mark.parametrize(
    "make", [Nothing, fixed_budget], ids=["plain", "sources"]
)


def in_each_way(test: Any) -> Any:
    """Run a test with and without drafts, greedily and sampling, in both kinds of caches."""
    caches = pytest.mark.parametrize("cache", [None, "int8"])
    return with_and_without_drafts(pytest.mark.parametrize("temperature", [0.0, 1.0])(caches(test)))


@in_each_way
def test_steps_in_a_row_are_those_made_one_by_one(
    make: Callable[[], Drafter],
    temperature: float,
    cache: Any,
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = NativeModel(tiny_llama(0), "int8" if cache else None, cache=cache)
    options = Options(Sampling(temperature), 60, seed=4)
    in_a_row = written(model, make(), options)
    assert max(calls) == native.IN_A_ROW
    calls.clear()
    monkeypatch.setattr(native, "IN_A_ROW", 1)
    one_by_one = written(model, make(), options)
    assert max(calls) == 1
    tokens = [
        [token for step in steps for token in step.tokens] for steps, _, _ in (in_a_row, one_by_one)
    ]
    assert tokens[0] == tokens[1]
    assert told(in_a_row[0]) == told(one_by_one[0])
    assert in_a_row[2] == one_by_one[2]


@pytest.mark.parametrize("shape", [Widths((2, 1, 1)), StochasticBeam(2, 3)], ids=repr)
@pytest.mark.parametrize("verifier", [Rejection(), Traversal(), MATCH], ids=repr)
@pytest.mark.parametrize("cache", [None, "int8"])
def test_a_draft_models_own_cache_follows_steps_in_a_row(
    shape: Shape, verifier: Verifier, cache: Any, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library keeps what ran of each path there, and reads the rest before the next tree."""
    model = NativeModel(tiny_llama(0), "int8" if cache else None, cache=cache)
    draft = NativeModel(tiny_llama(0), "int8" if cache else None, cache=cache)
    options = Options(Sampling(1.0), 60, seed=4)
    made = []
    for most in (native.IN_A_ROW, 1):
        monkeypatch.setattr(native, "IN_A_ROW", most)
        calls.clear()
        steps, text, length = written(model, DraftModel(draft, shape), options, verifier=verifier)
        assert max(calls) == most
        own: Any = text.draft
        known = own.session.length + len(own.late)
        made.append((told(steps), length, own.session.length, own.late))
        assert known == length
    assert made[0] == made[1]
    assert any(step.accepted for step in steps)


@pytest.mark.parametrize("short_of", ["context", "memory"])
def test_a_draft_model_without_room_for_a_row_makes_single_steps(
    model: NativeModel, calls: Calls, short_of: str
) -> None:
    draft, options = NativeModel(tiny_llama(1)), Options(Sampling(1.0), 16, seed=4)
    if short_of == "context":
        draft.config.max_position_embeddings = 60
    else:
        draft.pool.limit = 2 * draft.pool.block_bytes
    written(model, DraftModel(draft, Widths((2, 1))), options, verifier=Rejection())
    assert max(calls) == 1


RULES: list[dict[str, Any]] = [
    {"top_k": 8, "top_p": 0.9},
    {"repetition_penalty": 1.2},
    {"presence_penalty": 0.4, "frequency_penalty": 0.6, "min_p": 0.02},
]


@with_and_without_drafts
@pytest.mark.parametrize("rules", RULES, ids=lambda rules: ",".join(rules))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rules_of_sampling_know_the_steps_before_them(
    model: NativeModel,
    make: Callable[[], Drafter],
    rules: dict[str, Any],
    temperature: float,
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row of steps tells the penalties what it has written, as Python does step by step."""
    options = Options(Sampling(temperature, **rules), 60, seed=4)
    in_a_row = written(model, make(), options)
    assert max(calls) == native.IN_A_ROW
    monkeypatch.setattr(starting, "_caller", lambda text: None)
    calls.clear()
    in_python = written(model, make(), options)
    assert not any(calls)
    texts = [[token for step in each[0] for token in step.tokens] for each in (in_a_row, in_python)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("limit", range(2, 14))
def test_a_row_ends_with_the_text(model: NativeModel, calls: Calls, limit: int) -> None:
    steps, text, _ = written(model, fixed_budget(), Options(Sampling(0.0), limit))
    assert sum(len(step.tokens) for step in steps) == text.emitted == limit
    assert text.finish_reason == "length"


@pytest.mark.parametrize("place", range(2, 12))
def test_a_row_ends_at_a_stop_token(model: NativeModel, calls: Calls, place: int) -> None:
    options = Options(Sampling(1.0), 40, seed=1)
    whole = [token for step in written(model, Nothing(), options)[0] for token in step.tokens]
    end = whole[place]
    steps, text, length = written(
        model, Nothing(), replace(options, stop_tokens=frozenset({end, 10**6}))
    )
    found = [token for step in steps for token in step.tokens]
    assert found == whole[: whole.index(end) + 1]
    assert text.finish_reason == "stop"
    assert length == len(text.context.tokens)  # nothing was run behind the end


def test_a_row_ends_with_the_context(calls: Calls) -> None:
    model = NativeModel(tiny_llama(0))
    model.config.max_position_embeddings = 24
    _, text, length = written(model, Nothing(), Options(Sampling(0.0), 100))
    assert text.finish_reason == "length"
    assert length <= 24
    assert len(text.context.tokens) == 24


class Letters:
    """Stands in for a tokenizer."""

    def decode(self, tokens: list[int], **options: Any) -> str:
        return "".join(chr(97 + token % 26) for token in tokens)


def test_texts_that_are_looked_at_are_told_of_each_step(model: NativeModel, calls: Calls) -> None:
    for strings in ((), ("qqq",)):
        rule = StopStrings(Letters(), strings)  # type: ignore[arg-type]
        written(model, Nothing(), Options(Sampling(0.0), 20, stop_rules=[rule]))
        assert max(calls) == (1 if strings else native.IN_A_ROW)
        calls.clear()


def together(
    model: NativeModel, make: Callable[[], Drafter], kinds: list[Options], tell_within: float = 60.0
) -> list[list[int]]:
    """Tokens of texts of several lengths and options that share their passes."""
    texts = [
        engine.Sequence(model, make(), MATCH, [*PROMPT, *range(10, 10 + number)], options)
        for number, options in enumerate(kinds)
    ]
    for text in texts:
        text.tell_within = tell_within
    found: list[list[int]] = [[] for _ in texts]
    for number, step in engine.generate_batch(texts):
        found[number] += step.tokens
    return found


@in_each_way
def test_texts_that_share_passes_make_rows_of_the_same_steps(
    make: Callable[[], Drafter],
    temperature: float,
    cache: Any,
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever ends first, and whatever rules the others have."""
    model = NativeModel(tiny_llama(0), "int8" if cache else None, cache=cache)
    plain = Options(Sampling(temperature), 40, seed=4)
    ruled = Options(Sampling(temperature, repetition_penalty=1.2), 33, seed=5)
    kinds = [plain, ruled, replace(plain, max_new_tokens=7), replace(plain, seed=9)]
    in_a_row = together(model, make, kinds)
    assert max(calls) == native.IN_A_ROW
    assert list(map(len, in_a_row)) == [40, 33, 7, 40]
    calls.clear()
    monkeypatch.setattr(native, "IN_A_ROW", 1)
    assert together(model, make, kinds) == in_a_row
    assert max(calls) == 1


def test_a_text_that_is_looked_at_holds_the_others_to_single_steps(
    model: NativeModel, calls: Calls
) -> None:
    plain, rule = Options(Sampling(0.0), 12), StopStrings(Letters(), ("qqq",))  # type: ignore[arg-type]
    together(model, Nothing, [plain, replace(plain, stop_rules=[rule])])
    assert max(calls) == 1


def test_texts_that_share_passes_are_told_within_their_time(
    model: NativeModel, calls: Calls
) -> None:
    plain = Options(Sampling(0.0), 12)
    together(model, Nothing, [plain, plain], tell_within=0.0)
    assert max(calls) == 1


def test_news_end_a_row_with_the_step_under_way(calls: Calls) -> None:
    """Somebody who asks now waits for one pass, not for eight; the texts stay."""
    model, stop = NativeModel(tiny_llama(0, layers=12)), threading.Event()
    kinds = [Options(Sampling(1.0), 1 + 3 * native.IN_A_ROW, seed=4)] * 2
    expected = together(model, Nothing, kinds)
    assert set(calls) == {native.IN_A_ROW}

    def interrupt() -> None:
        while not stop.is_set():
            interrupt_rows()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        end = time.monotonic() + 60
        while set(calls) == {native.IN_A_ROW}:
            assert time.monotonic() < end
            assert together(model, Nothing, kinds) == expected
    finally:
        stop.set()
        thread.join()


def test_a_cache_that_is_nearly_full_is_enough_for_single_steps(calls: Calls) -> None:
    model = NativeModel(tiny_llama(0))
    options = Options(Sampling(0.0), 20)
    wanted, _, _ = written(model, Nothing(), options)
    assert max(calls) > 1
    calls.clear()
    model.pool.limit = 2 * model.pool.block_bytes  # 64 tokens, fewer than a row asks for
    steps, text, _ = written(model, Nothing(), options)
    assert told(steps) == told(wanted)
    assert text.finish_reason == "length"
    assert max(calls) == 1


def test_a_row_ends_after_its_time(model: NativeModel, calls: Calls) -> None:
    written(model, Nothing(), Options(Sampling(0.0), 12), tell_within=0.0)
    assert max(calls) == 1


@pytest.mark.parametrize("kind", [JacobiSampled, RacedJacobi])
def test_drawn_texts_do_not_depend_on_where_a_row_ends(
    kind: type[JacobiSampled], model: NativeModel
) -> None:
    budget = Budget(lambda nodes: 1.0 + 0.05 * nodes, per_draft_token=0.0)
    for seed in range(3):
        options = Options(Sampling(1.0), 90, seed=seed)
        verifier = Rejection() if kind is JacobiSampled else MATCH
        found = [
            written(model, kind(budget=budget), each, within, verifier)[1].context.tokens
            for within in (0.0, 60.0)
            for each in (options, replace(options, logprobs=0))
        ]
        assert all(each == found[0] for each in found)


def test_a_step_alone_is_the_default() -> None:
    assert RunLimits().steps == 1
