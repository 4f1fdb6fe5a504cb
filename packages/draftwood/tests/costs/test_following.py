"""Curves that follow passes: right soon whatever they said first, and never the text's business."""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import engine, methods
from draftwood.costs.budget import Budget
from draftwood.costs.calibration import Calibration
from draftwood.costs.curve import Curve
from draftwood.costs.following import ENOUGH, LONGEST, SHORTEST, SIZES, Following
from draftwood.drafters import JacobiSampled, MultiSource
from draftwood.drafters import multi_source as combined
from draftwood.drafters.jacobi_sampled import PayingWindow
from draftwood.engine import Options, Scheduler, generate, scheduler
from draftwood.engine.executors.native import IN_A_ROW
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.sampling import PassTime, Sampling
from draftwood.stats import Step
from draftwood.testing import TableModel, tiny_llama
from draftwood.verifiers import Match
from draftwood.verifiers.verifier import follows_draws
from draftwood_torch.models.transformers import TransformersModel
from reference.merger import PythonMerger

SAW = Following.saw
TRUE = Curve(SIZES, tuple(0.0027 * (1 + (size - 1) / 12) for size in SIZES))
NATIVE = pytest.param("native", marks=pytest.mark.skipif(not library.available(), reason="no C++"))


@pytest.fixture(autouse=True)
def follows(same_curve_everywhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here alone passes are heard."""
    monkeypatch.setattr(Following, "saw", SAW)


def bent(factor: Callable[[int], float]) -> Curve:
    return Curve.fit({size: TRUE(size) * factor(size) for size in SIZES})


def rising(size: int) -> float:
    """From 0.3 for one node to 3 for 32 and more."""
    return 0.3 * 10 ** min(1.0, math.log(size) / math.log(32))


def wild(size: int) -> float:
    return math.exp(random.Random(size).uniform(math.log(0.3), math.log(3)))


WRONG = {
    "a third": bent(lambda size: 0.3),
    "thrice": bent(lambda size: 3.0),
    "all but one node thrice": bent(lambda size: 3.0 if size > 1 else 1.0),
    "all but one node a third": bent(lambda size: 0.3 if size > 1 else 1.0),
    "one node thrice": bent(lambda size: 3.0 if size == 1 else 1.0),
    "small trees thrice": bent(lambda size: 3.0 if 2 <= size <= 8 else 1.0),
    "rising": bent(rising),
    "falling": bent(lambda size: 0.9 / rising(size)),
    "wild": bent(wild),
}


# ---- what passes say


def tell(curve: Following, nodes: int, ratio: float = 1.0, times: int = ENOUGH) -> None:
    for _ in range(times):
        curve.saw(PassTime(nodes, 128.0, ratio * TRUE(nodes)))


def test_before_any_pass_it_is_the_curve_it_was_given() -> None:
    assert Following(TRUE).curve is TRUE


@pytest.mark.parametrize("name", WRONG)
def test_sizes_that_run_are_right_after_three_passes_each(name: str) -> None:
    curve = Following(WRONG[name])
    for nodes in SIZES[:12]:
        tell(curve, nodes)
    for nodes in SIZES[:12]:
        assert curve(nodes) == pytest.approx(TRUE(nodes), rel=0.05)


def test_sizes_that_did_not_run_are_off_as_their_neighbours() -> None:
    curve = Following(TRUE)
    tell(curve, 1, 2.0)
    assert curve(32) == pytest.approx(2.0 * TRUE(32))
    tell(curve, 16, 4.0)
    assert curve(4) == pytest.approx(2.0 * math.sqrt(2.0) * TRUE(4))


def test_one_disturbed_pass_in_a_while_says_nothing() -> None:
    curve, chance = Following(TRUE), random.Random(0)
    for turn in range(400):
        tell(curve, chance.choice((1, 2, 5, 9)), 20.0 if turn % 7 == 3 else 1.0, 1)
    for nodes in range(1, 33):
        assert curve(nodes) == pytest.approx(TRUE(nodes), rel=0.031)


def test_what_the_machine_takes_now_counts() -> None:
    curve = Following(TRUE)
    tell(curve, 3, 1.0, 100)
    tell(curve, 3, 2.5, 100)
    assert curve(3) == pytest.approx(2.5 * TRUE(3))


def test_it_never_falls_whatever_it_is_told() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        factors = {size: math.exp(chance.gauss(0, 1)) for size in SIZES}
        curve = Following(bent(factors.__getitem__))
        for _ in range(120):
            nodes = chance.choice(range(1, 80))
            curve.saw(PassTime(nodes, chance.uniform(1, 999), chance.expovariate(200.0)))
            assert list(curve.curve.seconds) == sorted(curve.curve.seconds)


def test_passes_after_long_texts_are_told_from_slow_ones() -> None:
    curve = Following(Curve(TRUE.nodes, TRUE.seconds, per_context_token=1e-6))
    for _ in range(9):
        curve.saw(PassTime(8, 1128.0, 2 * (TRUE(8) + 8 * 1000 * 1e-6)))
    assert curve(8) == pytest.approx(2 * TRUE(8))
    assert curve.per_context_token == pytest.approx(2e-6)


def test_a_pass_that_several_texts_tell_counts_once() -> None:
    curve, took = Following(TRUE), PassTime(4, 128.0, 1.0)
    for _ in range(9):
        curve.saw(took)
    assert curve.passes == 1


def test_it_is_off_where_five_passes_differ_by_a_quarter() -> None:
    curve = Following(TRUE)
    tell(curve, 4, 1.2, 30)
    assert not curve.is_off
    tell(curve, 1, 1.3, 4)
    assert not curve.is_off
    tell(curve, 1, 1.3, 1)
    assert curve.is_off
    curve.restart(TRUE)
    assert not curve.is_off
    assert curve.curve is TRUE


# ---- trials


def trials(curve: Following, steps: int) -> list[int]:
    return [step for step in range(steps) if curve.trial() is not None]


def test_sizes_that_never_run_are_tried_and_then_left_alone() -> None:
    """One node alone would never contradict a curve that says trees are dear."""
    curve, tried = Following(WRONG["all but one node thrice"]), []
    for step in range(600):
        hoped = curve.trial()
        nodes = 1
        if hoped is not None:
            assert all(hoped(size) <= curve(size) for size in SIZES)
            nodes = max((size / hoped(size), size) for size in range(1, 9))[1]
            tried.append(step)
        tell(curve, nodes, times=1)
    assert tried[0] < SHORTEST
    assert curve(8) == pytest.approx(TRUE(8), rel=0.05)
    late = [step for step in tried if step >= 400]
    assert len(late) <= 200 // LONGEST + 1


def test_a_single_node_that_looks_dear_is_tried_and_then_left_alone() -> None:
    """Trees alone would never contradict a curve that says a single node is dear."""
    curve, plain = Following(WRONG["one node thrice"]), []
    for step in range(600):
        believed = curve.trial() or curve.curve
        nodes = 6 if believed(6) / 2 < believed(1) else 1  # drafts that bring two tokens a step
        if nodes == 1:
            plain.append(step)
        tell(curve, nodes, times=1)
    assert curve(1) == pytest.approx(TRUE(1), rel=0.05)
    assert ENOUGH <= len(plain) <= 3 * ENOUGH


def test_nothing_is_tried_where_no_pass_is_told() -> None:
    assert trials(Following(WRONG["thrice"]), 200) == []


# ---- in the engine


LEARNING, WRITTEN = 300, 6000


def speed(seconds: Callable[[int], float], monkeypatch: pytest.MonkeyPatch) -> float:
    """Tokens a second by the true curve over one and the same part of a text.

    Its first steps, ``LEARNING`` of them or more, do not count. Every pass takes what ``TRUE``
    says, up to noise, and once in a while far longer.
    """
    chance = random.Random(0)

    def pass_times(inputs: Sequence[Any], *told: object) -> tuple[PassTime, ...]:
        if not hasattr(inputs[0], "tree"):
            return ()
        nodes = len(inputs[0].tree)
        burst = 3.0 if chance.random() < 0.03 else 1.0
        return (PassTime(nodes, 128.0, burst * TRUE(nodes) * math.exp(chance.gauss(0, 0.04))),)

    monkeypatch.setattr(scheduler, "_pass_times", pass_times)
    logits = torch.randn(60, 60, generator=torch.Generator().manual_seed(0)) * 3
    budget = Budget.of(seconds)
    options = Options(Sampling(0.7), 100_000, seed=0)
    target, drafter, spent, tokens = TableModel(logits), MultiSource(budget=budget), 0.0, 0
    for number, step in enumerate(generate(target, drafter, Match(), [1, 2, 3], options)):
        tokens += len(step.tokens)
        if tokens > 6 * LEARNING:
            assert number > LEARNING
            spent += TRUE(1 + step.drafted) + budget.per_draft_token * step.drafted
            spent += budget.per_step
        if tokens >= 6 * LEARNING + WRITTEN:
            break
    return WRITTEN / spent


@pytest.fixture(scope="module")
def right() -> float:
    with pytest.MonkeyPatch.context() as patch:
        return speed(TRUE, patch)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", WRONG)
def test_any_curve_is_as_fast_as_the_right_one_after_300_steps(
    name: str, right: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert speed(Following(WRONG[name]), monkeypatch) >= 0.97 * right


@pytest.mark.usefixtures("unchecked")
def test_following_costs_next_to_nothing_where_the_curve_is_right(
    right: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert speed(Following(TRUE), monkeypatch) >= 0.98 * right


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["all but one node thrice", "small trees thrice"])
def test_curves_that_do_not_follow_stay_slow(
    name: str, right: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the same simulation tells a wrong curve from a right one."""
    assert speed(WRONG[name], monkeypatch) < 0.8 * right


def heard(monkeypatch: pytest.MonkeyPatch) -> list[PassTime]:
    told: list[PassTime] = []

    def hear(following: Following, took: PassTime | None) -> None:
        if took is not None and not any(took is each for each in told):
            told.append(took)

    monkeypatch.setattr(Following, "saw", hear)
    return told


def nodes_of(steps: list[Step]) -> list[int]:
    return [1 + step.drafted for step in steps if not step.is_prefill]


def model_of(name: str) -> Any:
    hf_model = tiny_llama()
    return NativeModel(hf_model, "float32") if name == "native" else TransformersModel(hf_model)


@pytest.mark.parametrize("model", [NATIVE, "general"])
def test_each_pass_of_a_text_is_told_with_its_size(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = heard(monkeypatch)
    target = model_of(model)
    drafter = MultiSource(budget=Budget.of(Following(WRONG["a third"])))
    steps = list(generate(target, drafter, Match(), [*range(9)] * 4, Options(max_new_tokens=40)))
    sizes = nodes_of(steps)
    assert max(sizes) > 1
    assert [each.nodes for each in told] == sizes[: len(told)]
    assert len(told) >= len(sizes) - IN_A_ROW  # the text ends with the last ones
    assert all(each.seconds > 0 for each in told)
    assert told[0].context == 36
    assert [each.context for each in told] == sorted(each.context for each in told)


@pytest.mark.parametrize("model", [NATIVE, "general"])
def test_a_pass_that_texts_share_is_told_as_one(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = heard(monkeypatch)
    target = model_of(model)
    drafter = MultiSource(budget=Budget.of(Following(TRUE)))
    with_two = Scheduler()
    for _ in range(2):
        with_two.add(
            engine.Sequence(target, drafter, Match(), [1, 2, 3], Options(max_new_tokens=20))
        )
    steps: dict[int, list[Step]] = {}
    while with_two:
        for event in with_two.step():
            steps.setdefault(event.number, []).append(event.progress)
    both = zip(*map(nodes_of, steps.values()), strict=True)
    assert [each.nodes for each in told] == [one + other for one, other in both][: len(told)]
    assert len(told) >= 5
    assert told[0].nodes >= 2


def test_what_several_texts_tell_of_passes_in_a_row_counts_once() -> None:
    following = Following(TRUE)
    made = [PassTime(1, 0.0, 0.01) for _ in range(IN_A_ROW)]
    for took in [*made, *made, *made]:
        following.saw(took)
    assert following.passes == IN_A_ROW


# ---- texts


@pytest.mark.skipif(not library.available(), reason="no C++")
@pytest.mark.parametrize("way", ["native", "python"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_the_same_whatever_passes_take(
    way: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "python":
        monkeypatch.setattr(combined, "Merger", PythonMerger)
    chance = random.Random(0)

    def pass_times(inputs: Sequence[Any], *told: object) -> tuple[PassTime, ...]:
        return (PassTime(chance.randint(1, 20), 128.0, chance.expovariate(100.0)),)

    monkeypatch.setattr(scheduler, "_pass_times", pass_times)
    logits = torch.randn(30, 30, generator=torch.Generator().manual_seed(3)) * 2
    texts, drafted = [], set()
    for curve in (lambda nodes: float(nodes**2), TRUE, Following(TRUE), Following(WRONG["wild"])):
        drafter = MultiSource(budget=Budget.of(curve))
        options = Options(Sampling(temperature), 300, seed=5)
        steps = list(generate(TableModel(logits), drafter, Match(), [1, 2], options))
        texts.append([token for step in steps for token in step.tokens])
        drafted.add(sum(step.drafted for step in steps))
    assert all(text == texts[0] for text in texts)
    assert len(drafted) == 4  # though the trees were others


def test_methods_that_weigh_a_curve_write_texts_that_no_tree_changes() -> None:
    weighing = [recipe for recipe in methods.known().values() if "curve" in recipe.drafter.uses]
    assert len(weighing) >= 3
    drawn = [each for each in weighing if not follows_draws(each.verifier)]
    assert {each.drafter for each in drawn} <= {JacobiSampled}  # whose budget is no longer asked


def test_a_window_of_draws_is_weighed_by_the_curve_as_it_was_at_first() -> None:
    curve = Following(TRUE)
    window = PayingWindow(16, Budget.of(curve))
    first = window.size()
    tell(curve, 1, 0.2, 50)
    tell(curve, 16, 5.0, 50)
    assert curve.is_off
    window.learn(first, first)
    assert window.size() >= first > 0
    assert PayingWindow(16, Budget.of(curve).now()).size() < first  # which would follow passes


def test_a_method_that_may_not_measure_begins_with_what_is_assumed(tmp_path: Path) -> None:
    calibration = Calibration(TableModel(torch.eye(4)), tmp_path, "float32")  # type: ignore[arg-type]
    followed = calibration.followed(measures=False)
    assert isinstance(followed, Following)
    assert followed(1) == pytest.approx(0.02)
    assert not followed.is_good
    assert calibration.followed() is followed  # the same, which is now measured
    assert followed.is_good
    assert followed(1) == 0.01
