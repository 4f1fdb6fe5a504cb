"""A cache with a limit, and prompts that begin alike: texts are the same as without."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from draftwood import engine
from draftwood.costs.budget import Budget
from draftwood.drafters import Drafter, DraftModel, MultiSource, Nothing, PromptLookup
from draftwood.engine import Limits, Options, ParallelSampling, Scheduler, run_all
from draftwood.engine.executors.overlapping import Overlapping
from draftwood.engine.task import ALONE, StepBudget
from draftwood.models.model import CacheFullError
from draftwood.models.native import NativeModel
from draftwood.models.native.prefixes import Prefixes
from draftwood.native import library
from draftwood.sampling import Sampling
from draftwood.shapes import Widths
from draftwood.stats import Step
from draftwood.testing import tiny_llama
from draftwood.verifiers import Match, Rejection
from draftwood.verifiers.verifier import Verifier
from draftwood_methods.drafters.merged import MergedDrafters
from draftwood_methods.drafters.stand import Stand

pytestmark = pytest.mark.skipif(not library.available(), reason="needs a C++ compiler")

BUDGET = Budget(lambda nodes: 1.0 + 0.01 * nodes, per_draft_token=0.0, per_step=0.0)
PROMPT = [3, 5, 7, 11, 3, 5, 7, 2] * 12


@pytest.fixture(scope="module")
def model() -> NativeModel:
    return NativeModel(tiny_llama(context=512), "float32")


@pytest.fixture(scope="module")
def draft() -> NativeModel:
    return NativeModel(tiny_llama(context=512, seed=3), "float32")


def sequence(
    model: NativeModel,
    drafter: Drafter,
    verifier: Verifier | None = None,
    prompt: Sequence[int] = PROMPT,
    **options: object,
) -> engine.Sequence:
    wanted = Options(**{"max_new_tokens": 90, "seed": 1, **options})  # type: ignore[arg-type]
    return engine.Sequence(model, drafter, verifier or Match(), prompt, wanted)


def requests(model: NativeModel, draft: NativeModel, **options: object) -> list[engine.Sequence]:
    """Texts of several methods and temperatures, with prompts of several lengths."""
    drawn = Sampling(1.0)
    return [
        sequence(model, Nothing(), **options),
        sequence(model, MultiSource(budget=BUDGET), sampler=drawn, **options),
        sequence(model, PromptLookup(), prompt=PROMPT[:70], **options),
        sequence(model, DraftModel(draft, Widths((2, 1))), Rejection(), sampler=drawn, **options),
        sequence(model, MultiSource(budget=BUDGET), prompt=PROMPT * 2, logprobs=1, **options),
        sequence(model, Stand(), Rejection(), sampler=drawn, prompt=PROMPT[:40], **options),
    ]


def texts(tasks: Sequence[engine.Sequence], limits: Limits | None = None) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in tasks]
    for number, step in run_all(tasks, limits or Limits(requests=8)):
        found[number] += step.tokens
    return found


def alone(model: NativeModel, draft: NativeModel, **options: object) -> list[list[int]]:
    return [texts([each])[0] for each in requests(model, draft, **options)]


@pytest.fixture
def limited(model: NativeModel) -> object:
    """A limit in blocks, taken back behind the test."""

    def limit(blocks: int) -> None:
        model.pool.limit = blocks * model.pool.block_bytes

    yield limit
    model.pool.limit = None


@pytest.mark.parametrize("blocks", [10, 14, 24, 64])
def test_texts_that_give_way_are_the_same(
    model: NativeModel, draft: NativeModel, limited: object, blocks: int, monkeypatch
) -> None:
    expected, gave = alone(model, draft), []
    preempt = engine.Sequence.preempt
    monkeypatch.setattr(engine.Sequence, "preempt", lambda self: gave.append(self) or preempt(self))
    limited(blocks)  # type: ignore[operator]
    assert texts(requests(model, draft)) == expected
    assert bool(gave) == (blocks < 64)
    assert model.pool.used_blocks == 0


@pytest.mark.parametrize("blocks", [9, 12, 14])
def test_texts_with_large_trees_give_way_too(
    model: NativeModel, draft: NativeModel, limited: object, blocks: int
) -> None:
    def several() -> list[engine.Sequence]:
        wide = DraftModel(draft, Widths((4, 3, 3)))
        return [
            sequence(model, wide, prompt=PROMPT[:length], max_new_tokens=20)
            for length in (15, 2, 77, 33)
        ]

    expected = [texts([each])[0] for each in several()]
    limited(blocks)  # type: ignore[operator]
    assert texts(several()) == expected


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("kind", ["auto", "large", "wide", "merged", "overlapping"])
def test_a_text_alone_writes_plainly_where_no_tree_fits(
    model: NativeModel, draft: NativeModel, limited: object, kind: str, in_turn: bool
) -> None:
    options = {"logprobs": 1} if in_turn else {}
    wide = DraftModel(draft, Widths((4, 3, 3)))
    shape = {
        "auto": MultiSource(budget=BUDGET),
        "large": MultiSource(budget=replace(BUDGET, max_draft_tokens=96)),
        "wide": wide,
        "merged": MergedDrafters((wide, PromptLookup())),
        "overlapping": Overlapping(wide),
    }[kind]
    plain = texts([sequence(model, Nothing())])
    blocks = -(-(len(PROMPT) + 90) // model.pool.places_per_block)
    limited(blocks - 1)  # type: ignore[operator]
    with pytest.raises(CacheFullError):
        texts([sequence(model, Nothing())])
    limited(blocks)  # type: ignore[operator]
    drafted = sequence(model, shape, **options)
    assert texts([drafted]) == plain
    assert model.pool.used_blocks == 0


def test_a_text_that_can_never_fit_fails_alone(model: NativeModel, limited: object) -> None:
    limited(8)  # type: ignore[operator]
    batch, told = Scheduler(), {}
    long = batch.add(sequence(model, Nothing(), prompt=PROMPT * 3))
    short = batch.add(sequence(model, Nothing(), prompt=PROMPT[:20], max_new_tokens=5))
    while batch:
        for event in batch.step():
            told[event.number] = event
    assert isinstance(told[long].error, CacheFullError)
    assert told[short].finish_reason == "length"
    assert model.pool.used_blocks == 0


def test_several_answers_give_way_and_come_back(model: NativeModel, limited: object) -> None:
    def answers() -> ParallelSampling:
        drawn = Sampling(1.0)
        return ParallelSampling(
            [sequence(model, PromptLookup(), seed=seed, sampler=drawn) for seed in range(3)]
        )

    def written(limit: int | None) -> list[list[int]]:
        if limit is not None:
            limited(limit)  # type: ignore[operator]
        found: list[list[int]] = [[], [], []]
        tasks = [sequence(model, Nothing()), answers()]
        for number, told in run_all(tasks, Limits(requests=8)):
            for place, step in told if number else []:
                found[place] += step.tokens
        return found

    expected = written(None)  # first: the limit stays until the test ends
    assert written(14) == expected


@pytest.mark.parametrize("limit", [None, 16])
def test_a_known_prefix_leaves_texts_as_they_are(
    model: NativeModel, draft: NativeModel, limited: object, limit: int | None
) -> None:
    expected = alone(model, draft)
    if limit is not None:
        limited(limit)  # type: ignore[operator]
    prefixes = Prefixes(model)
    try:
        first = requests(model, draft, prefixes=prefixes)
        again = requests(model, draft, prefixes=prefixes)
        together = requests(model, draft, prefixes=prefixes)
        assert [texts([each])[0] for each in first] == expected
        assert [texts([each])[0] for each in again] == expected
        assert texts(together) == expected
        reused = [each.prefill.reused for each in again]
        assert reused[5] == 0  # it learns from the logits of the prompt
        assert max(reused) > 0
        if limit is None:
            assert reused[:5] == [95, 95, 69, 95, 191]
    finally:
        prefixes.clear()
    assert model.pool.used_blocks == 0


def run_once(task: engine.Sequence, budget: StepBudget = ALONE) -> Sequence[Step]:
    """Plan and commit one pass, which is said to take a second."""
    inputs = task.plan(budget)
    return task.commit(inputs[0].runner.forward(inputs), 1.0)


def test_a_prompt_that_gives_way_counts_once_what_was_known_of_it(model: NativeModel) -> None:
    prefixes = Prefixes(model)
    texts([sequence(model, Nothing(), prompt=PROMPT[:64], prefixes=prefixes)])
    again = sequence(model, Nothing(), prefixes=prefixes)
    for _ in range(3):
        run_once(again, StepBudget(prompt_rows=8))
        assert again.prefill.reused == 64
        assert again.preempt()
    texts([again])
    assert again.prefill.reused == 64
    prefixes.clear()


def test_steps_tell_the_seconds_of_all_passes_of_a_text_that_gives_way(model: NativeModel) -> None:
    task, steps, passes = sequence(model, Nothing(), logprobs=0, max_new_tokens=12), [], 0
    while task.finish_reason is None:
        steps += run_once(task, StepBudget(prompt_rows=40))
        passes += 1
        if passes in (2, 6, 12):  # within the prompt, and behind the first token
            assert task.preempt()
    task.close()
    told = [each.seconds["target"] for each in steps]
    assert sum(told) == passes == len(steps) + 2 + 2 + 3 + 3
    assert sorted(told)[-3:] == [4.0, 4.0, 5.0]


def test_another_salt_shares_nothing(model: NativeModel) -> None:
    prefixes = Prefixes(model)
    texts([sequence(model, Nothing(), prefixes=prefixes, salt="one")])
    same = sequence(model, Nothing(), prefixes=prefixes, salt="one")
    other = sequence(model, Nothing(), prefixes=prefixes, salt="two")
    assert texts([same]) == texts([other])
    assert same.prefill.reused == len(PROMPT) - 1
    assert other.prefill.reused == 0
    prefixes.clear()


BEGINNING = (PROMPT * 4)[:320]  # ten blocks


def begin_alike(
    model: NativeModel, kind: type[Drafter], **options: object
) -> list[engine.Sequence]:
    """Texts of at most 24 tokens that share ten blocks, the later ones a part of the next too."""
    return [
        sequence(model, kind(), prompt=[*BEGINNING, *end, 5], max_new_tokens=24, **options)
        for end in ([1, 1, 1], [2, 2], [1, 1], [2, 3], [1])
    ]


def test_a_prompt_wants_no_blocks_that_other_texts_have(
    model: NativeModel, limited: object
) -> None:
    expected = [texts([each])[0] for each in begin_alike(model, Nothing)]
    limited(30)  # type: ignore[operator]
    prefixes = Prefixes(model)
    tasks = begin_alike(model, Nothing, prefixes=prefixes)
    scheduler = Scheduler(Limits(requests=8, prompt_rows=324))
    for task in tasks:
        scheduler.add(task)
    assert [task.prefill.wants for task in tasks] == [12] * 5  # a tree's behind the prompt
    scheduler.step()
    assert [task.prefill.wants for task in tasks[1:]] == [2] * 4  # no copy of a spare block
    while not any(task.finish_reason for task in tasks):
        scheduler.step()
    assert [task.emitted > 12 for task in tasks] == [True] * 5
    assert ends_of(scheduler).keys() == set(range(1, 5))
    assert [[*each.context.tokens, each.root][-24:] for each in tasks] == expected
    (*_, late) = begin_alike(model, Nothing, prefixes=prefixes)
    assert late.prefill.wants == 12  # blocks of texts that have ended count, as they are free
    prefixes.clear()
    assert model.pool.used_blocks == 0


@pytest.mark.parametrize("kind", [Nothing, PromptLookup])
@pytest.mark.parametrize("blocks", range(14, 27, 3))
def test_no_prompt_begins_that_cannot_get_its_blocks(
    model: NativeModel,
    limited: object,
    blocks: int,
    kind: type[Drafter],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = [texts([each])[0] for each in begin_alike(model, kind)]
    lacked: list[object] = []
    report = Scheduler._lacked
    monkeypatch.setattr(Scheduler, "_lacked", lambda *given: lacked.append(given) or report(*given))
    limited(blocks)  # type: ignore[operator]
    prefixes = Prefixes(model)
    for _ in range(2):
        found = begin_alike(model, kind, prefixes=prefixes)
        assert texts(found, Limits(requests=8, prompt_rows=64)) == expected
    assert not lacked
    prefixes.clear()
    assert model.pool.used_blocks == 0


def test_a_prompt_that_its_drafter_wants_to_see_is_counted_again(
    model: NativeModel, limited: object
) -> None:
    limited(30)  # type: ignore[operator]
    prefixes = Prefixes(model)
    first, *_ = begin_alike(model, Nothing, prefixes=prefixes)
    while first.root < 0:
        run_once(first)
    drawn = {"sampler": Sampling(1.0), "prompt": [*BEGINNING, 2, 2, 5], "prefixes": prefixes}
    late = sequence(model, Stand(), Rejection(), **drawn)
    assert late.prefill.wants == 2
    assert late.plan() == []
    assert late.prefill.wants == 12
    assert late.plan()
    first.close()
    late.close()
    prefixes.clear()
    assert model.pool.used_blocks == 0


def test_a_chat_goes_on_from_its_answer(model: NativeModel) -> None:
    prefixes = Prefixes(model)
    first = sequence(model, Nothing(), prefixes=prefixes)
    (answer,) = texts([first])
    more = sequence(model, Nothing(), prompt=[*PROMPT, *answer, 4, 4], prefixes=prefixes)
    plain = sequence(model, Nothing(), prompt=[*PROMPT, *answer, 4, 4])
    assert texts([more]) == texts([plain])
    assert more.prefill.reused >= len(PROMPT) + 60
    prefixes.clear()


def ends_of(scheduler: Scheduler, most: int = 3000) -> dict[int, object]:
    """Reasons why tasks ended, or their errors."""
    ends: dict[int, object] = {}
    for _ in range(most):
        if not scheduler:
            break
        for event in scheduler.step():
            if event.finish_reason or event.error:
                ends[event.number] = event.finish_reason or event.error
    return ends


@pytest.mark.parametrize("length", [158, 162, 166])
def test_a_prompt_waits_where_steps_in_a_row_take_its_blocks(
    model: NativeModel, limited: object, length: int
) -> None:
    """The text before runs ahead of what it was counted with; the younger one is run again."""
    tasks = [sequence(model, Nothing(), prompt=(PROMPT * 2)[:130], max_new_tokens=90)]
    tasks.append(sequence(model, Nothing(), prompt=(PROMPT * 2)[:130], max_new_tokens=20))
    expected = [texts([each])[0] for each in requests_again(tasks)]
    limited(12)  # type: ignore[operator]
    scheduler = Scheduler(Limits(requests=8))
    scheduler.add(tasks[0])
    while tasks[0].prefill.length < length:
        scheduler.step()
    scheduler.add(tasks[1])
    assert ends_of(scheduler) == {0: "length", 1: "length"}
    assert [list(each.context.tokens[130:]) for each in tasks] == [each[:-1] for each in expected]
    assert model.pool.used_blocks == 0


@pytest.mark.parametrize("kind", [Nothing, PromptLookup])
def test_texts_seldom_give_way_twice_without_a_token(
    model: NativeModel, limited: object, kind: type[Drafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that gave way begins again only where its next tree has room."""
    gave_way: list[tuple[int, int]] = []
    preempt = engine.Sequence.preempt

    def noted(task: engine.Sequence) -> bool:
        gave_way.append((id(task), task.emitted))
        return preempt(task)

    monkeypatch.setattr(engine.Sequence, "preempt", noted)
    tasks = [sequence(model, kind(), prompt=PROMPT[: 40 + each]) for each in range(6)]
    expected = [texts([each])[0] for each in requests_again(tasks)]
    limited(11)  # type: ignore[operator]
    assert texts(tasks) == expected
    assert gave_way
    # others may grow while it is run again; once it was hundreds of times
    assert len(gave_way) - len(set(gave_way)) <= 2
    assert model.pool.used_blocks == 0


def requests_again(tasks: Sequence[engine.Sequence]) -> list[engine.Sequence]:
    """The same requests, not begun."""
    return [
        engine.Sequence(each.target, each.drafter, each.verifier, each.prompt, each.options)
        for each in tasks
    ]


def test_copies_of_a_prompt_wait_for_blocks(model: NativeModel, limited: object) -> None:
    prompt = (PROMPT * 2)[:130]
    limited(10)  # type: ignore[operator]
    scheduler = Scheduler(Limits(requests=8))
    scheduler.add(sequence(model, Nothing(), prompt=prompt, max_new_tokens=60))
    members = [sequence(model, Nothing(), prompt=prompt, max_new_tokens=2) for _ in range(2)]
    scheduler.add(ParallelSampling(members))
    assert ends_of(scheduler) == {0: "length", 1: "length"}
    assert model.pool.used_blocks == 0


@pytest.mark.parametrize("blocks", [13, 14, 15, 16, 18])
def test_answers_do_not_take_the_same_room_for_their_trees(
    model: NativeModel, limited: object, blocks: int
) -> None:
    limited(blocks)  # type: ignore[operator]
    scheduler = Scheduler(Limits(requests=8))
    members = [
        sequence(model, Stand(), Rejection(), prompt=PROMPT[:33], sampler=Sampling(1.0), seed=seed)
        for seed in range(4)
    ]
    scheduler.add(ParallelSampling(members))
    assert ends_of(scheduler) == {0: "length"}
    assert model.pool.used_blocks == 0
