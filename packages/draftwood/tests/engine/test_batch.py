"""The open batch: requests join, end, fail and are cancelled at any step, and disturb nobody."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from draftwood import engine
from draftwood.drafters import (
    DraftModel,
    JacobiSampled,
    MultiSource,
    Nothing,
    PromptLookup,
    RacedJacobi,
)
from draftwood.drafters.drafter import (
    Drafter,
    DraftRequest,
    DraftSession,
    Reads,
    VerifiedTree,
)
from draftwood.engine import (
    Event,
    InTurn,
    Limits,
    ModelInput,
    Options,
    Scheduler,
    Task,
    generate,
    run_all,
)
from draftwood.engine.task import KeepsCache, Pace, StepBudget
from draftwood.models.cached import CachedModel
from draftwood.models.model import ForwardInput, Model, ModelOutput
from draftwood.models.native import NativeModel
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import StochasticBeam, Widths
from draftwood.testing import TableModel, tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Match, Rejection
from draftwood.verifiers.verifier import Verdict, Verifier
from draftwood_methods.drafters.layer_skip import LayerSkip
from draftwood_methods.drafters.stand import Stand
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel

DRAFT = LeanModel(tiny_llama(1, layers=1))
MODELS: dict[str, CachedModel] = {
    "native": NativeModel(tiny_llama()),
    "lean": LeanModel(tiny_llama()),
    "general": TransformersModel(tiny_llama()),
}
METHODS: list[tuple[Drafter, Verifier]] = [
    (Nothing(), Match()),
    (PromptLookup(), Match()),
    (MultiSource(), Match()),
    (DraftModel(DRAFT, StochasticBeam(3, 2)), Rejection()),
    (LayerSkip(frozenset({1}), Widths((2, 1))), Rejection()),
    (Stand(6), Rejection()),
    (JacobiSampled(3), Rejection()),
    (RacedJacobi(3), Match()),
]


class BrokenError(Exception):
    """Error that tests raise."""


@dataclass(frozen=True)
class Acting(Drafter):
    """Another drafter that fails at a chosen call of one act, and counts how often it is closed.

    Args:
        inner: what drafts.
        act: ``start``, ``propose`` or ``update``; None never fails.
        call: at which call of it.
        hidden: layers that it asks for besides.
    """

    name: ClassVar[str] = "acting"
    inner: Drafter
    act: str | None = None
    call: int = 0
    hidden: tuple[int, ...] = ()
    closed: list[int] = None  # type: ignore[assignment]

    def start(self, request: DraftRequest) -> DraftSession:
        session = _ActingSession(self, self.inner.start(request))
        session.reach("start")
        return session


class _ActingSession(DraftSession):
    def __init__(self, config: Acting, inner: DraftSession) -> None:
        self.config, self.inner = config, inner
        self.calls = {"start": 0, "propose": 0, "update": 0}
        self.number = len(config.closed)
        config.closed.append(0)

    def reach(self, act: str) -> None:
        self.calls[act] += 1
        if act == self.config.act and self.calls[act] == self.config.call:
            raise BrokenError(act)

    @property
    def reads(self) -> Reads:
        return replace(self.inner.reads, hidden=self.config.hidden)

    def propose(self, root: int, context: Context) -> DraftTree:
        self.reach("propose")
        return self.inner.propose(root, context)

    def update(self, verified: VerifiedTree) -> None:
        if self.config.hidden:
            assert verified.output is not None
            assert tuple(verified.output.hidden) == self.config.hidden
            nodes = {len(states) for states in verified.output.hidden.values()}
            assert nodes == {len(verified.tree)}
        self.reach("update")
        self.inner.update(verified)

    def close(self) -> None:
        self.inner.close()
        self.config.closed[self.number] += 1


@dataclass(frozen=True)
class FailingVerifier:
    """Another verifier that fails at a chosen call."""

    inner: Verifier
    calls: list[int]
    at: int
    name: ClassVar[str] = "failing"

    @property
    def exact_for(self) -> frozenset[Any]:
        return self.inner.exact_for

    def __call__(self, tree: DraftTree, target_probs: Any, rng: Rng) -> Verdict:
        self.calls.append(1)
        if len(self.calls) == self.at:
            raise BrokenError("verifier")
        return self.inner(tree, target_probs, rng)


class FailingSampler(Sampling):
    """A sampler that fails at a chosen call."""

    def probs(self, logits: Any, contexts: Any = (), out: Any = None) -> Any:
        calls = self.__dict__.setdefault("calls", [])
        calls.append(1)
        if len(calls) == 3:
            raise BrokenError("sampler")
        return super().probs(logits, contexts, out)


class Second(Sampling):
    """A sampler of its own: token 2, whatever the model says."""

    def probs(self, logits: Any, contexts: Any = (), out: Any = None) -> Any:
        found = super().probs(logits, contexts, out)
        found[:] = 0.0
        found[:, 2] = 1.0
        return found


@pytest.mark.parametrize("verifier", [Match(), Rejection()])
@pytest.mark.parametrize("drafter", [Nothing(), DraftModel(DRAFT, Widths((1, 1)))])
def test_a_sampler_of_another_kind_is_asked_for_every_token(
    drafter: Drafter, verifier: Verifier
) -> None:
    if isinstance(drafter, DraftModel) and isinstance(verifier, Match):
        drafter = PromptLookup()
    options = Options(Second(1.0), 20, seed=0)
    steps = generate(MODELS["native"], drafter, verifier, [5, 9, 5, 9], options)
    assert {token for step in steps for token in step.tokens} == {2}


@dataclass
class Request:
    """One request of a schedule, and what it wrote."""

    prompt: list[int]
    drafter: Drafter
    verifier: Verifier
    options: Options
    fails: str | None
    joins: int  # step
    leaves: int | None  # step at which it is cancelled
    number: int = -1
    tokens: list[int] = None  # type: ignore[assignment]
    closed: list[int] = None  # type: ignore[assignment]
    ended: str | None = None

    def sequence(self, model: Model) -> engine.Sequence:
        self.closed = []
        acting = self.fails if self.fails in ("start", "propose", "update") else None
        chance = random.Random(len(self.prompt))
        call = 1 if acting == "start" else chance.randint(1, 3)
        drafter = Acting(self.drafter, acting, call, self.hidden, self.closed)
        verifier = self.verifier
        if self.fails == "verifier":
            verifier = FailingVerifier(verifier, [], 2)  # type: ignore[assignment]
        options = self.options
        if self.fails == "sampler":
            options = replace(options, sampler=FailingSampler(0.8, top_k=20))
        return engine.Sequence(model, drafter, verifier, self.prompt, options)

    @property
    def hidden(self) -> tuple[int, ...]:
        """Layers whose states it asks for: others than those of its neighbours."""
        return ((), (0,), (1, 2), (2,))[len(self.prompt) % 4]


def schedule(seed: int) -> list[Request]:
    """Some requests of all kinds that come and go at random steps."""
    chance = random.Random(seed)
    found = []
    for _ in range(chance.randint(3, 6)):
        drafter, verifier = chance.choice(METHODS)
        length = chance.choice((1, 3, 6, 11, 30))
        temperature = chance.choice((0.0, 0.0, 0.8))
        fails = chance.choice(
            (None, None, None, "start", "propose", "update", "verifier", "sampler")
        )
        sampling = Sampling(0.8, top_k=20) if fails == "sampler" else Sampling(temperature)
        found.append(
            Request(
                [chance.randrange(64) for _ in range(length)],
                drafter,
                verifier,
                Options(sampling, chance.randint(1, 14), seed=chance.randrange(99)),
                fails,
                joins=chance.randint(0, 6),
                leaves=chance.choice((None, None, chance.randint(1, 12))),
            )
        )
    return found


def alone(model: Model, request: Request) -> list[int]:
    """The text that the request writes by itself, were nothing to fail."""
    steps = generate(model, request.drafter, request.verifier, request.prompt, request.options)
    return [token for step in steps for token in step.tokens]


def carry_out(model: CachedModel, requests: Sequence[Request], batch: Scheduler) -> None:
    """Run a schedule to its end."""
    for each in requests:
        each.tokens = []
    step = 0
    while batch or any(each.number < 0 for each in requests):
        for each in requests:
            if each.number < 0 and each.joins <= step:
                each.number = batch.add(each.sequence(model))
            if each.leaves is not None and each.leaves == step - each.joins and not each.ended:
                batch.cancel(each.number)
                each.ended = "cancelled"
        by_number = {each.number: each for each in requests}
        for event in batch.step():
            request = by_number[event.number]
            assert not request.ended, "an ended request was heard of again"
            if event.progress is not None:
                request.tokens += event.progress.tokens
            if event.error is not None:
                assert isinstance(event.error, BrokenError), event.error
                request.ended = f"failed in {event.error}"
            elif event.finish_reason is not None:
                request.ended = event.finish_reason
        step += 1


SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.proof) for seed in range(6, 40))]


@pytest.mark.parametrize("path", MODELS)
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_others_do_a_text_is_the_same_as_alone(path: str, seed: int) -> None:
    model, requests = MODELS[path], schedule(seed)
    texts = [alone(model, each) for each in requests]
    batch = Scheduler(Limits(requests=random.Random(seed).randint(1, 5), prompt_rows=16))
    carry_out(model, requests, batch)
    for request, text in zip(requests, texts, strict=True):
        whole = request.ended in ("stop", "length")
        assert request.tokens == (text if whole else text[: len(request.tokens)])
        assert request.ended is not None
        if request.fails is None and request.leaves is None:
            assert whole
        assert all(count == (request.fails != "start") for count in request.closed)
    assert not model.pool.used
    assert not DRAFT.pool.used


def test_the_schedules_hold_every_kind_of_end() -> None:
    requests = [each for seed in range(20) for each in schedule(seed)]
    for number in range(0, len(requests), 5):
        carry_out(MODELS["lean"], requests[number : number + 5], Scheduler())
    ends = {each.ended for each in requests}
    failed = {f"failed in {act}" for act in ("start", "propose", "update", "verifier", "sampler")}
    assert ends == {"length", "cancelled"} | failed


@pytest.fixture
def model() -> Iterator[LeanModel]:
    yield (made := LeanModel(tiny_llama()))
    assert not made.pool.used


def sequence(
    model: Model, drafter: Drafter | None = None, prompt: Sequence[int] = (1, 2, 3), tokens: int = 8
) -> engine.Sequence:
    return engine.Sequence(
        model, drafter or Nothing(), Match(), prompt, Options(max_new_tokens=tokens)
    )


def test_a_short_prompt_does_not_wait_for_all_of_a_long_one(model: LeanModel) -> None:
    """And the long one goes on, however many short ones come."""
    batch = Scheduler(Limits(prompt_rows=8))
    long = batch.add(sequence(model, prompt=[1] * 80, tokens=1))
    ended, steps = list[int](), 0
    while long not in ended:
        short = batch.add(sequence(model, prompt=[1] * 8, tokens=1))
        began = steps
        while short not in ended:
            ended += [event.number for event in batch.step() if event.finish_reason]
            steps += 1
            assert steps <= began + 4
    assert 12 <= steps <= 25


def test_a_failing_pass_ends_its_requests_alone(
    model: LeanModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LeanModel(tiny_llama(2))
    wanted = [step.tokens for _, step in run_all([sequence(other)])]
    batch = Scheduler()
    ours = [batch.add(sequence(model, DraftModel(DRAFT))) for _ in range(2)]
    theirs = batch.add(sequence(other))
    first = batch.step()
    assert [event.error for event in first] == [None] * 3

    def broken(inputs: Sequence[ForwardInput]) -> list[ModelOutput]:
        raise BrokenError("pass")

    monkeypatch.setattr(model, "forward", broken)
    second = {event.number: event for event in batch.step()}
    assert all(isinstance(second[number].error, BrokenError) for number in ours)
    assert not model.pool.used
    assert not DRAFT.pool.used
    events = [first[theirs], second[theirs]]
    while batch:
        events += batch.step()
    assert [event.progress.tokens for event in events] == wanted
    assert events[-1].finish_reason == "length"


@pytest.mark.parametrize("where", ["pass", "propose", "verifier"])
def test_an_interrupt_leaves_nothing_taken(
    model: LeanModel, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    batch = Scheduler(Limits(requests=2))
    for _ in range(3):
        batch.add(sequence(model, DraftModel(DRAFT, Widths((1, 1)))))
    batch.step()
    assert len(batch) == 3
    assert len(model.pool.used) == 2

    def interrupted(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    owner, name = {
        "pass": (model, "forward"),
        "propose": (InTurn, "draft"),
        "verifier": (Match, "__call__"),
    }[where]
    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        batch.step()
    assert not batch
    assert not model.pool.used
    assert not DRAFT.pool.used


def test_waiting_requests_hold_no_cache_and_start_in_turn(model: LeanModel) -> None:
    batch = Scheduler(Limits(requests=2))
    numbers = [batch.add(sequence(model, tokens=3 + n)) for n in range(5)]
    batch.cancel(numbers[3])
    heard: list[int] = []
    while batch:
        heard += [event.number for event in batch.step() if event.number not in heard]
        assert len(model.pool.used) <= 2
    assert heard == [0, 1, 2, 4]


def test_a_cancelled_request_is_free_at_once_and_twice_is_harmless(model: LeanModel) -> None:
    batch = Scheduler()
    number = batch.add(sequence(model))
    batch.step()
    assert model.pool.used
    batch.cancel(number)
    assert not model.pool.used
    batch.cancel(number)
    batch.cancel(77)
    assert batch.step() == []


def test_long_prompts_do_not_hold_up_texts_under_way(model: LeanModel) -> None:
    batch = Scheduler(Limits(prompt_rows=20))
    first = batch.add(sequence(model, tokens=12))
    batch.step()
    for _ in range(3):
        batch.add(sequence(model, prompt=[5] * 15, tokens=2))
    began: dict[int, int] = {}
    for step in range(6):
        events = {event.number: event for event in batch.step()}
        assert first in events  # one more token at every step
        told = [number for number, event in events.items() if event.progress is not None]
        began.update({number: step for number in told if number not in began})
    assert [began[number] for number in (1, 2, 3)] == [0, 1, 2]
    batch.close()


def test_prompts_take_the_rows_for_which_a_step_has_time(model: LeanModel) -> None:
    """A row takes 1 ms and a step 8 ms: beside two texts a prompt has 6 rows, alone it has all."""
    batch = Scheduler(Limits(pace=Pace(lambda rows: rows * 1e-3, 8.2e-3)))
    texts = [batch.add(sequence(model, tokens=40)) for _ in range(2)]
    while sum(event.progress is not None for event in batch.step()) < 2:
        pass
    late = sequence(model, prompt=[5] * 20, tokens=2)
    number, left = batch.add(late), []
    while not left or left[-1]:
        heard = {event.number for event in batch.step()}
        assert heard >= set(texts)
        left.append(late.prompt_left)
    assert left == [14, 8, 2, 0]
    for each in texts:
        batch.cancel(each)
    batch.cancel(number)
    last = sequence(model, prompt=[5] * 20, tokens=2)
    batch.add(last)
    batch.step()
    assert last.prompt_left == 0
    batch.close()


def test_a_pace_counts_what_context_costs() -> None:
    pace = Pace(lambda rows: 1e-3 * rows, 20e-3, per_context_token=1e-6)
    assert pace.prompt_rows(0, 0, 0, 512) == 512
    assert pace.prompt_rows(1, 0, 0, 512) == 18
    assert pace.prompt_rows(1, 0, 1000, 512) == 9
    assert pace.prompt_rows(5, 5_000, 0, 512) == 9
    assert pace.prompt_rows(19, 0, 0, 512) == 9  # half as long again
    assert pace.prompt_rows(50, 0, 0, 512) == 24
    with pytest.raises(ValueError, match="more than 0 seconds"):
        Pace(lambda rows: 1.0, 0.0)


def test_a_pass_s_time_is_shared_by_rows(model: LeanModel, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr("draftwood.engine.scheduler.time.perf_counter", lambda: float(next(clock)))
    batch = Scheduler()
    batch.add(sequence(model, PromptLookup(), prompt=[1, 2, 3] * 4))
    batch.add(sequence(model))
    shares = []
    while len(shares) < 2:
        events = batch.step()
        if all(event.progress.tree is not None for event in events):
            shares = [(len(e.progress.tree), e.progress.seconds["target"]) for e in events]
    batch.close()
    (many, long), (one, short) = shares
    assert one == 1
    assert long == pytest.approx(many * short)
    assert long + short == pytest.approx(1.0)


@pytest.mark.parametrize("limits", [{"requests": 0}, {"prompt_rows": 0}, {"requests": -1}])
def test_impossible_limits(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Limits(**limits)


def test_a_schedule_that_disturbs_others_is_caught() -> None:
    """Negative control: requests that share a drafter's session write other texts."""

    class Leaky(Nothing):
        """Drafts what follows from all that any request has read."""

        seen: ClassVar[list[int]] = []

        def propose(self, root: int, context: Context) -> DraftTree:
            guess = sum(self.seen) % 64
            return DraftTree.of([root, guess], [-1, 0]) if guess % 2 else DraftTree.chain([root])

        def update(self, verified: VerifiedTree) -> None:
            self.seen.extend(verified.tokens)

    class Obliging(Match):
        """Keeps whatever was drafted."""

        def __call__(self, tree: DraftTree, target_probs: Any, rng: Rng) -> Verdict:
            return Verdict(list(range(1, len(tree))), rng.draw(target_probs[len(tree) - 1]))

    def texts(count: int) -> list[list[int]]:
        Leaky.seen.clear()
        made = [
            engine.Sequence(
                MODELS["lean"], Leaky(), Obliging(), [7 + n, 3], Options(max_new_tokens=12)
            )
            for n in range(count)
        ]
        found: list[list[int]] = [[] for _ in made]
        for number, step in run_all(made):
            found[number] += step.tokens
        return found

    assert texts(1)[0] != texts(3)[0]


def test_a_task_may_be_anything_that_runs_models(model: LeanModel) -> None:
    """A task of another kind than text: it asks for the likeliest token after each of two texts."""

    class Likeliest(KeepsCache):
        finish_reason = None

        def __init__(self) -> None:
            self.sessions = []

        def plan(self, budget: StepBudget) -> list[ForwardInput]:
            self.sessions = [model.start(), model.start()]
            return [ForwardInput(s, DraftTree.chain([n])) for n, s in enumerate(self.sessions)]

        def commit(self, outputs: Sequence[ModelOutput], seconds: float) -> list[list[int]]:
            self.finish_reason = "stop"
            return [[int(output.logits[-1].argmax()) for output in outputs]]

        def close(self) -> None:
            for session in self.sessions:
                session.close()

    batch = Scheduler()
    batch.add(Likeliest())  # type: ignore[arg-type]
    batch.add(sequence(model))
    event, _ = batch.step()
    session = model.start()
    assert event.progress[0] == int(session.extend([0]).logits[-1].argmax())
    session.close()
    assert event.finish_reason == "stop"
    batch.close()


def test_what_a_model_cannot_do_is_refused_by_name() -> None:
    table = TableModel(torch.zeros(8, 8))
    reading = engine.Sequence(
        table, Acting(Nothing(), hidden=(1,), closed=[]), Match(), [1], Options()
    )
    (event,) = step_of(reading)
    with pytest.raises(ValueError, match=r"acting needs a model that .* 'hidden'.* TableModel"):
        raise event.error or AssertionError


def step_of(task: Task) -> list[Event]:
    """Events of the first step of a task."""
    batch = Scheduler()
    batch.add(task)
    try:
        return batch.step()
    finally:
        batch.close()


def test_a_task_that_waits_is_asked_again_at_each_step(model: LeanModel) -> None:
    class Patient(engine.Sequence):
        """Waits for two steps before it begins."""

        times = 0

        def plan(self, budget: StepBudget) -> Sequence[ModelInput]:
            self.times += 1
            return [] if self.times < 3 else super().plan(budget)

    batch = Scheduler()
    batch.add(Patient(model, Nothing(), Match(), [1, 2, 3], Options(max_new_tokens=2)))
    batch.add(sequence(model, tokens=9))
    heard = [{event.number for event in batch.step()} for _ in range(4)]
    assert heard == [{1}, {1}, {0, 1}, {0, 1}]
    batch.close()


class Stuck(engine.Sequence):
    """A text whose end fails."""

    def close(self) -> None:
        super().close()
        raise BrokenError("close")


@pytest.mark.parametrize("act", [None, "propose"])
def test_a_text_whose_end_fails_leaves_the_others_alone(model: LeanModel, act: str | None) -> None:
    wanted = [step.tokens for _, step in run_all([sequence(model)])]
    batch, options = Scheduler(), Options(max_new_tokens=3)
    broken = Stuck(model, Acting(Nothing(), act, 2, closed=[]), Match(), [1, 2, 3], options)
    ours, theirs = batch.add(broken), batch.add(sequence(model))
    events = [event for _ in range(20) for event in batch.step()]
    own = [event for event in events if event.number == ours]
    assert [str(event.error) for event in own if event.error] == [act or "close"]
    assert own[-1].error is not None
    assert [event.progress.tokens for event in events if event.number == theirs] == wanted
    told = [token for event in own if event.progress for token in event.progress.tokens]
    assert told == [token for step in wanted for token in step][: 2 if act else 3]
    assert not batch


def test_a_task_that_cannot_be_closed_keeps_no_other_from_it(model: LeanModel) -> None:
    batch = Scheduler()
    for kind in (Stuck, engine.Sequence, Stuck, engine.Sequence):
        batch.add(kind(model, Nothing(), Match(), [1, 2], Options()))
    batch.step()
    assert len(model.pool.used) == 4
    with pytest.raises(BrokenError, match="close"):
        batch.close()
    assert not batch
    assert not model.pool.used
