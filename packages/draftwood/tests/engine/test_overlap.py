"""Drafting while the target runs: the same texts, nothing left behind, and what is refused."""

import gc
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest
import torch

from draftwood import engine, methods
from draftwood.drafters import DraftModel
from draftwood.drafters import overlap as overlap_module
from draftwood.drafters.drafter import Drafter, DraftRequest, VerifiedTree, overlap_of
from draftwood.drafters.overlap import SideThread, require_places
from draftwood.engine import (
    Limits,
    Options,
    Overlap,
    Overlapped,
    Overlapping,
    ParallelSampling,
    generate,
    run_all,
)
from draftwood.engine.executors import ahead, likely
from draftwood.models.model import Model, ModelOutput
from draftwood.models.native import NativeModel
from draftwood.models.shared import shared_passes
from draftwood.native.threads import lift_limit, limit_others, threads, usable
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import BestFirst, Independent, StochasticBeam, Widths
from draftwood.shapes.shape import Shape
from draftwood.stats import DraftingTime, Stats, Step
from draftwood.testing import TableModel, tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Block, KSeq, Match, Rejection, Traversal
from draftwood.verifiers.verifier import Verifier
from draftwood_methods.drafters.cascade import Cascade
from draftwood_torch.models.transformers import TransformersModel
from law_cases import contextual
from tiny_heads import tiny_lm

TOKENS, PROMPT = 24, [2, 0, 1, 1, 2]
PAIRS: list[tuple[Shape, Verifier]] = [
    (Widths((1, 1, 1)), Match()),
    (Widths((1, 1, 1)), Rejection()),
    (Widths((2, 1, 1)), Rejection()),
    (StochasticBeam(3, 3), Rejection()),
    (StochasticBeam(2, 2), Traversal()),
    (Widths((1, 1, 1)), Block()),
    (Independent(2, 2), KSeq()),
    (BestFirst(3, 3, 6), Match()),
]
# with threads of each there is no need of several cores
ALWAYS = Overlap(pre_verify="always", target_threads=1)
NEVER = Overlap(pre_verify="never", target_threads=1)


@pytest.fixture(scope="module")
def tables() -> tuple[TableModel, TableModel]:
    return contextual(12)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No thread outlives its texts."""
    yield
    gc.collect()
    until = time.monotonic() + 10
    while left := [each for each in threading.enumerate() if "draftwood" in each.name]:
        assert time.monotonic() < until, left
        time.sleep(0.005)
    assert usable() == threads()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny targets are done before drafts have begun; here they wait for them."""
    known = ahead.DraftedAhead.may_follow

    def waiting(self: ahead.DraftedAhead, accepted: Sequence[int]) -> bool:
        with suppress(BrokenError):  # it is raised where the tree is asked for
            self.wait()
        return known(self, accepted)

    monkeypatch.setattr(ahead.DraftedAhead, "may_follow", waiting)


def write(
    target: Model,
    drafter: Drafter,
    verifier: Verifier,
    options: Options,
    overlap: Overlap | None = None,
) -> tuple[list[int], Stats]:
    if overlap is not None:
        drafter = Overlapping(drafter, overlap)
    steps = list(generate(target, drafter, verifier, PROMPT, options))
    return [token for step in steps for token in step.tokens], Stats.of(steps)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("shape", "verifier"), PAIRS, ids=lambda each: each.name)
def test_texts_are_those_without_overlap(
    tables: tuple[TableModel, TableModel], shape: Shape, verifier: Verifier, temperature: float
) -> None:
    target, draft = tables
    drafter, kept, split = DraftModel(draft, shape), 0, 0
    for seed, overlap in product((1, 2), (NEVER, ALWAYS)):
        options = Options(Sampling(temperature), TOKENS, seed=seed)
        wanted, plain = write(target, drafter, verifier, options)
        text, stats = write(target, drafter, verifier, options, overlap)
        assert text == wanted
        assert stats.drafting is not None
        assert plain.drafting is None
        assert stats.drafting.hidden <= stats.drafting.seconds
        kept += stats.drafting.kept
        split += stats.target_runs - plain.target_runs
        assert overlap is ALWAYS or stats.target_runs == plain.target_runs
    assert kept > 0
    assert split > 0


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("overlap", [NEVER, ALWAYS], ids=lambda each: each.pre_verify)
@pytest.mark.parametrize("path", ["native", "general"])
def test_models_with_caches_write_the_same(path: str, overlap: Overlap, temperature: float) -> None:
    kind: Any = NativeModel if path == "native" else TransformersModel
    target, other = kind(tiny_llama(0)), kind(tiny_llama(0))
    for draft in (other, shared_passes(kind(tiny_llama(1, layers=1)))):
        drafter = DraftModel(draft, Widths((2, 1, 1)))
        options = Options(Sampling(temperature), 24, seed=5)
        wanted, _ = write(target, drafter, Rejection(), options)
        text, stats = write(target, drafter, Rejection(), options, overlap)
        assert text == wanted
        assert stats.drafting is not None
        if draft is other:  # says what the target says, so outcomes are foreseen
            assert stats.drafting.kept > 0
        until = time.monotonic() + 10
        while draft.pool.used and time.monotonic() < until:  # type: ignore[attr-defined]
            time.sleep(0.005)
        assert not draft.pool.used  # type: ignore[attr-defined]


@pytest.mark.parametrize("overlap", [NEVER, ALWAYS], ids=lambda each: each.pre_verify)
def test_a_draft_lm_drafts_ahead_too(overlap: Overlap) -> None:
    target = NativeModel(tiny_llama(0, layers=2))
    built = methods.build("lm-rsd", target, shape=Widths((2, 1)), head=tiny_lm(target))
    for temperature in (0.0, 1.0):
        options = Options(Sampling(temperature), 24, seed=3)
        wanted, _ = write(target, built.drafter, built.verifier, options)
        text, stats = write(target, built.drafter, built.verifier, options, overlap)
        assert text == wanted
        assert stats.drafting is not None
        assert stats.drafting.seconds > 0
        assert overlap is ALWAYS or stats.drafting.ahead > 0


def test_penalties_and_vocabularies_of_another_size(tables: tuple[TableModel, TableModel]) -> None:
    target, draft = tables
    smaller = TableModel(draft.logits[:11, :11, :11, :11])
    sampling = Sampling(0.9, top_p=0.9, repetition_penalty=1.3, presence_penalty=0.2)
    drafter = DraftModel(smaller, Widths((2, 1)))
    options = Options(sampling, TOKENS, seed=1)
    wanted, _ = write(target, drafter, Rejection(), options)
    assert write(target, drafter, Rejection(), options, ALWAYS)[0] == wanted


# What must be noticed


def control(tables: tuple[TableModel, TableModel], shape: Shape, verifier: Verifier) -> int:
    """Count the texts, of a few, that differ from those without overlap."""
    target, draft = tables
    different = 0
    for seed in range(4):
        options = Options(Sampling(1.0), TOKENS, seed=seed)
        wanted, _ = write(target, DraftModel(draft, shape), verifier, options)
        found, _ = write(target, DraftModel(draft, shape), verifier, options, NEVER)
        different += found != wanted
    return different


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("verifier", [Match(), Rejection()], ids=lambda each: each.name)
def test_a_tree_for_another_outcome_changes_texts(
    tables: tuple[TableModel, TableModel], verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = ahead.DraftedAhead.result

    def another(self: Any, tokens: Any, context: Any, state: Any) -> Any:
        self.wait()
        some = next((each for each in self._found if each != tokens), tokens)
        found = self._found.get(some)
        if found is None:
            return honest(self, tokens, context, state)
        self.wanted.dropped = False
        self._branches.remove(found.session)
        self.close()
        return found

    assert control(tables, Widths((1, 1)), verifier) == 0
    monkeypatch.setattr(ahead.DraftedAhead, "result", another)
    assert control(tables, Widths((1, 1)), verifier) > 0


@pytest.mark.usefixtures("patient")
def test_a_tree_of_other_numbers_changes_texts(
    tables: tuple[TableModel, TableModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_verdict(self: Any, tokens: tuple[int, ...]) -> likely.ForeseenOutcome | None:
        outcome = honest(self, tokens)
        return outcome and replace(outcome, rng=self.given.rng.copy())

    honest = likely._Search._forced
    monkeypatch.setattr(likely._Search, "_forced", without_verdict)
    assert control(tables, Widths((2, 1)), Rejection()) == 0  # it is noticed, and not used

    def trusting(self: Any, tokens: Any, context: Any, state: Any) -> Any:
        self.wait()
        start = self._found[tokens].start if tokens in self._found else state
        return result(self, tokens, context, start)

    result = ahead.DraftedAhead.result
    monkeypatch.setattr(ahead.DraftedAhead, "result", trusting)
    assert control(tables, Widths((2, 1)), Rejection()) > 0


# Errors, ends, several texts


class BrokenError(Exception):
    """Error that tests raise."""


@dataclass(frozen=True)
class Breaking(TableModel):
    """A draft model whose passes outside of the main thread fail, or take their time."""

    raises: type[Exception] | None = None
    seconds: float = 0.0

    def after(self, tails: Sequence[tuple[int, ...]]) -> torch.Tensor:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(self.seconds)
            if self.raises is not None:
                raise self.raises("no memory for drafts")
        return super().after(tails)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("overlap", [NEVER, ALWAYS], ids=lambda each: each.pre_verify)
def test_an_error_of_the_thread_is_the_drafters_own(
    tables: tuple[TableModel, TableModel], overlap: Overlap
) -> None:
    target, draft = tables
    drafter = DraftModel(Breaking(draft.logits, BrokenError), Widths((1, 1)))
    with pytest.raises(BrokenError, match="no memory for drafts"):
        write(target, drafter, Rejection(), Options(max_new_tokens=TOKENS), overlap)


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError, RuntimeError])
def test_without_memory_for_trees_ahead_drafts_come_in_turn(
    tables: tuple[TableModel, TableModel], error: type[Exception]
) -> None:
    target, draft = tables
    drafter = DraftModel(Breaking(draft.logits, error), Widths((1, 1)))
    options = Options(Sampling(1.0), TOKENS, seed=2)
    wanted, _ = write(target, drafter, Rejection(), options)
    text, stats = write(target, drafter, Rejection(), options, NEVER)
    assert text == wanted
    assert stats.drafting is not None
    assert stats.drafting.kept == 0


@pytest.mark.parametrize("overlap", [NEVER, ALWAYS], ids=lambda each: each.pre_verify)
def test_a_text_that_is_left_ends_at_once_and_frees_its_caches_later(overlap: Overlap) -> None:
    target, draft = NativeModel(tiny_llama(0)), NativeModel(tiny_llama(0))
    begun, closed_at_work, compute, run = [], [], draft.compute, target.compute

    def not_at_once(parts: Any, hidden: Any) -> list[ModelOutput]:
        time.sleep(0.03)  # drafts have begun when it ends
        return run(parts, hidden)

    def slowly(parts: Any, hidden: Any) -> list[ModelOutput]:
        if threading.current_thread() is not threading.main_thread():
            begun.append(parts)
            time.sleep(0.1)
            closed_at_work.append(not draft.pool.used)
        return compute(parts, hidden)

    draft.compute, target.compute = slowly, not_at_once  # type: ignore[method-assign]
    drafter = Overlapping(DraftModel(draft, Widths((1,) * 6)), overlap)
    steps = generate(target, drafter, Rejection(), PROMPT, Options(max_new_tokens=TOKENS))
    next(steps)
    next(steps)
    since = time.monotonic()
    steps.close()  # type: ignore[attr-defined]
    assert time.monotonic() - since < 0.08
    assert not target.pool.used
    passes = len(begun)
    until = time.monotonic() + 10
    while draft.pool.used and time.monotonic() < until:
        time.sleep(0.005)
    assert not draft.pool.used
    assert len(begun) == passes  # none began after that
    assert closed_at_work
    assert not any(closed_at_work)


@pytest.mark.parametrize("overlap", [NEVER, ALWAYS], ids=lambda each: each.pre_verify)
def test_a_wait_that_is_broken_off_frees_no_cache_in_mid_pass(
    overlap: Overlap, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = NativeModel(tiny_llama(0)), NativeModel(tiny_llama(0))
    closed_at_work, compute = [], draft.compute

    def slowly(parts: Any, hidden: Any) -> list[ModelOutput]:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.1)
            closed_at_work.append(not draft.pool.used)
        return compute(parts, hidden)

    def broken_off(self: ahead.SideDraft) -> None:
        until = time.monotonic() + 10
        while not (self._since or self._future.cancelled()) and time.monotonic() < until:
            time.sleep(0.001)
        raise KeyboardInterrupt

    draft.compute = slowly  # type: ignore[method-assign]
    monkeypatch.setattr(ahead.SideDraft, "wait", broken_off)
    drafter = Overlapping(DraftModel(draft, Widths((1, 1))), overlap)
    with pytest.raises(KeyboardInterrupt):
        list(generate(target, drafter, Rejection(), PROMPT, Options(max_new_tokens=TOKENS)))
    until = time.monotonic() + 10
    while draft.pool.used and time.monotonic() < until:
        time.sleep(0.005)
    assert not draft.pool.used
    assert not any(closed_at_work)


def test_a_prompt_is_taken_over_without_the_root_of_a_pass_under_way() -> None:
    draft = NativeModel(tiny_llama(0))
    drafter, context = DraftModel(draft, Widths((1, 1))), Context(PROMPT, len(PROMPT))

    def started() -> Any:
        session = drafter.start(DraftRequest(Sampling(), Rng(0), draft.start()))
        session.update(VerifiedTree(DraftTree.chain(PROMPT), range(len(PROMPT))))
        return session

    first, second = started(), started()
    first.session.extend([*PROMPT, 7])  # as in the midst of its own draft
    second.follow(first)
    assert second.propose(7, context).token_list == started().propose(7, context).token_list
    assert second.session.length == len(PROMPT)


def test_a_thread_that_could_not_start_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(count: int) -> None:
        raise OSError("no thread")

    thread = SideThread(1)
    with monkeypatch.context() as patch:
        patch.setattr(overlap_module, "work_beside", broken)
        with pytest.raises(OSError, match="no thread"):
            thread.enter()
    process = thread.enter()
    thread.leave(process + 1)  # a copy of a text, in a fork
    thread.call(lambda: None).result()
    thread.leave(process)


def test_several_texts_and_answers_are_those_alone() -> None:
    target, draft = NativeModel(tiny_llama(0)), shared_passes(NativeModel(tiny_llama(0)))
    drafter = Overlapping(DraftModel(draft, Widths((2, 1))), ALWAYS)
    prompts = [[1, 2, 3], [7, 5], [9, 9, 4, 1]]

    def sequence(drafter: Drafter, prompt: list[int], seed: int) -> engine.Sequence:
        options = Options(Sampling(1.0), 16, seed=seed)
        return engine.Sequence(target, drafter, Rejection(), prompt, options)

    alone = []
    for number, prompt in enumerate([*prompts, prompts[0], prompts[0]]):
        task = sequence(drafter.drafter, prompt, number)
        alone.append([token for _, step in run_all([task]) for token in step.tokens])
    texts: list[list[int]] = [[] for _ in prompts]
    tasks = [sequence(drafter, prompt, number) for number, prompt in enumerate(prompts)]
    for number, step in run_all(tasks, Limits(requests=2)):
        texts[number] += step.tokens
    assert texts == alone[:3]
    answers: list[list[int]] = [[], [], []]
    members = [sequence(drafter, prompts[0], seed) for seed in (0, 3, 4)]
    for _, told in run_all([ParallelSampling(members)]):
        for number, step in told:
            answers[number] += step.tokens
    assert answers == [alone[0], alone[3], alone[4]]


def test_a_root_that_was_run_may_lose_its_cache() -> None:
    target, draft = NativeModel(tiny_llama(0)), NativeModel(tiny_llama(0))
    drafter = DraftModel(draft, Widths((1, 1)))
    options = Options(Sampling(0.0), 16)
    wanted, _ = write(target, drafter, Match(), options)
    task = engine.Sequence(target, Overlapping(drafter, ALWAYS), Match(), PROMPT, options)
    text, preempted = [], 0
    while task.finish_reason is None:
        inputs: list[Any] = list(task.plan())
        steps = task.commit(target.forward(inputs), 0.0)
        if not steps and task.root >= 0 and not task.prompt_left and preempted < 3:
            preempted += task.preempt()
        text += [token for step in steps for token in step.tokens]
    task.close()
    assert preempted > 0
    assert text == wanted


# What it says, what it refuses


def test_the_account_counts_what_fell_into_passes() -> None:
    draft = ahead.TurnDraft(None, 0, None)  # type: ignore[arg-type]
    draft._since, draft._until = 10.0, 14.0
    assert draft.seconds(13.0) == (4.0, 3.0)
    assert draft.seconds(9.0) == (4.0, 0.0)
    assert draft.seconds(20.0) == (4.0, 4.0)
    one = DraftingTime(4.0, 3.0, 1, 1)
    stats = Stats.of([Step([1], tree=DraftTree.chain([0]), drafting=one)] * 2) + Stats()
    assert stats.drafting == DraftingTime(8.0, 6.0, 2, 2)
    assert stats.as_json()["drafting"] == {
        **{"seconds": 8.0, "hidden": 6.0, "hidden_share": 0.75},
        **{"ahead": 2, "kept": 2},
    }
    assert "drafting" not in Stats().as_json()
    assert DraftingTime().hidden_share == 0.0


def test_a_slow_target_hides_nearly_all_drafting(tables: tuple[TableModel, TableModel]) -> None:
    @dataclass(frozen=True)
    class Slow(TableModel):
        def after(self, tails: Sequence[tuple[int, ...]]) -> torch.Tensor:
            time.sleep(0.02)
            return super().after(tails)

    target, draft = Slow(tables[0].logits), tables[1]
    drafter = DraftModel(draft, Widths((1, 1)))
    _, stats = write(target, drafter, Rejection(), Options(max_new_tokens=12), ALWAYS)
    assert stats.drafting is not None
    assert stats.drafting.hidden_share > 0.8


def test_limits_hold_for_others_and_while_they_are_wanted() -> None:
    before = threads()
    limit_others(1)
    limit_others(1)
    assert threads() == 1
    lift_limit(1)
    lift_limit(1)
    assert threads() == before


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("early-exit", "parts of the target itself"),
        ("shadow", "parts of the target itself"),
        ("layer-skip", "parts of the target itself"),
        ("eagle", "reads the target's hidden states"),
        ("cascade", "learns from its drafts"),
        ("lookup", "cost next to nothing"),
        ("auto", "cost next to nothing"),
    ],
)
def test_methods_with_nothing_to_overlap_are_refused(name: str, why: str) -> None:
    needs = methods.recipe(name).drafter.needs
    given = {"draft-model", "head"} & needs
    with pytest.raises(ValueError, match=f"{why}.*leave overlap out.*rsd-s"):
        methods.require([name], given, overlap=True)
    methods.require([name], given)


def test_bad_overlaps(
    tables: tuple[TableModel, TableModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ({"outcomes": -1}, {"draft_threads": 0}, {"target_threads": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be from"):
            Overlap(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pre_verify must be auto, always, never"):
        Overlap(pre_verify="sometimes")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="True, False or an Overlap"):
        overlap_of("yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cascade cannot draft ahead"):
        Overlapping(Cascade(tables[1]))
    gpu, cpu = torch.device("cuda:0"), torch.device("cpu")
    with pytest.raises(ValueError, match=r"both are on cuda:0; load the draft model on the CPU"):
        require_places(gpu, gpu, Overlap())
    require_places(gpu, cpu, Overlap())
    monkeypatch.setattr("draftwood.drafters.overlap.cpus", lambda: 1)
    with pytest.raises(ValueError, match="a single one; leave overlap out"):
        methods.build("rsd-s", *tables, overlap=Overlap())
    assert methods.build("rsd-s", *tables, overlap=ALWAYS).drafter.name == "draft-model"


def test_a_text_under_a_grammar_is_drafted_in_turn(tables: tuple[TableModel, TableModel]) -> None:
    from draftwood.engine.constraints import Constrained

    drafter = Overlapping(DraftModel(tables[1]), ALWAYS)
    masked = Constrained(Sampling(), None)  # type: ignore[arg-type]
    for sampler, overlaps in ((Sampling(), True), (masked, False)):
        task = engine.Sequence(tables[0], drafter, Match(), PROMPT, Options(sampler))
        task.open()
        assert isinstance(task.executor, Overlapped) == overlaps
        task.close()
