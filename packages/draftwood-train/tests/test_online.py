"""Small steps on texts that were just written make a head better at these, and only at these."""

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwood import engine, methods
from draftwood.arrays import to_bfloat16
from draftwood.engine import Options
from draftwood.engine.scheduler import run_all
from draftwood.heads.trained import TrainedHead
from draftwood.learning.learner import output_rows
from draftwood.learning.learning import Learning
from draftwood.learning.texts import WatchedText
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.sampling import Sampling
from draftwood.testing import tiny_llama
from draftwood_train.online import HeadLearner, OnlineSettings
from tiny_heads import tiny_ctc, tiny_eagle

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")

QUICK = OnlineSettings(rate=3e-3, passes=6, radius=10.0)


@pytest.fixture(scope="module")
def target() -> NativeModel:
    return NativeModel(tiny_llama(0, layers=6), "float32")


@pytest.fixture(scope="module")
def trained(target: NativeModel) -> TrainedHead:
    return tiny_eagle(target, range(target.vocab_size))


@pytest.fixture(scope="module")
def texts(target: NativeModel, trained: TrainedHead) -> list[WatchedText]:
    """Texts of one kind: prompts of three tokens, drawn at temperature 1."""
    method = methods.build("eagle", target, head=trained)
    learning = Learning(target, trained, a_learner(target, trained), round_rows=10**9)
    for seed in range(30):
        options = Options(Sampling(1.0), 60, seed=seed, watch=learning.watch)
        prompt = [1 + seed % 5, 2, 3]
        text = engine.Sequence(target, method.drafter, method.verifier, prompt, options)
        for _ in run_all([text]):
            pass
    return learning.buffer.texts


def a_learner(
    target: NativeModel, trained: TrainedHead, settings: OnlineSettings = QUICK
) -> HeadLearner:
    rows, embed = output_rows(trained, target), target.embeddings_and_head.embed
    return HeadLearner(trained, rows, embed, settings)


def nothing() -> None:
    """Never wait."""


def figures(learner: HeadLearner, head: Any, texts: Sequence[WatchedText]) -> np.ndarray:
    return learner.judge(head, texts, nothing).mean(0)


def test_a_head_gets_better_at_texts_of_the_kind_it_learns_from(
    target: NativeModel, trained: TrainedHead, texts: list[WatchedText]
) -> None:
    learner, before = a_learner(target, trained), deepcopy(trained.weights)
    older, newest = texts[:26], texts[26:]
    learnt = learner.train(trained.weights, older, [], nothing)
    gain = figures(learner, learnt, newest) - figures(learner, trained.weights, newest)
    assert gain[0] > 0.05
    assert gain[1] > 0.1
    assert learner.steps > 10
    for name, weight in trained.weights.items():
        assert np.array_equal(weight, before[name])


def followed(target: NativeModel, trained: TrainedHead, seed: int) -> WatchedText:
    """A text of random tokens and states, in which each token says which one follows."""
    drawn, vocab = np.random.default_rng(seed), target.vocab_size
    tokens = drawn.integers(0, vocab, 60)
    final = 3.0 * np.asarray(output_rows(trained, target))[(7 * tokens + 1) % vocab]
    states = drawn.normal(size=(60, 3, target.hidden_size)).astype(np.float32)
    return WatchedText(tokens, to_bfloat16(states), to_bfloat16(final), np.ones(60, bool), 2, 0.0)


def test_rows_that_belong_to_other_places_teach_nothing(
    target: NativeModel, trained: TrainedHead
) -> None:
    """The negative control: the same texts, whose tokens and states are shuffled."""
    texts = [followed(target, trained, seed) for seed in range(34)]
    drawn = np.random.default_rng(0)
    shuffled = [
        replace(text, states=drawn.permutation(text.states), tokens=drawn.permutation(text.tokens))
        for text in texts[:30]
    ]
    gains = []
    for given in (texts[:30], shuffled):
        learner = a_learner(target, trained, replace(QUICK, passes=10))
        learnt = learner.train(trained.weights, given, [], nothing)
        both = [figures(learner, head, texts[30:])[1] for head in (trained.weights, learnt)]
        gains.append(both[1] - both[0])
    assert gains[0] > 0.2
    assert gains[1] < 0.25 * gains[0]


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_head_that_learnt_of_shuffled_rows_never_takes_over(
    target: NativeModel, trained: TrainedHead, shuffled: bool
) -> None:
    """Twelve requests a round; the newest tenth of the buffer judges, shuffled as it is."""
    drawn, learner = np.random.default_rng(1), a_learner(target, trained)
    learning = Learning(target, trained, learner, round_rows=10**9, least_judged=50)
    for number in range(48):
        text = followed(target, trained, number)
        if shuffled:
            text = replace(text, states=drawn.permutation(text.states))
            text = replace(text, tokens=drawn.permutation(text.tokens))
        learning.take(text)
        if number % 12 == 11:
            learning.catch_up()
    learning.close()
    status = learning.status
    assert status.swaps + status.drops == 4
    assert (status.swaps == 0) is shuffled


def test_every_place_of_an_answer_is_judged_once_by_the_target_s_distribution(
    target: NativeModel, trained: TrainedHead, texts: list[WatchedText]
) -> None:
    learner = a_learner(target, trained)
    found = learner.judge(trained.weights, texts, nothing)
    assert len(found) == sum(text.answer_rows for text in texts)
    assert ((found >= 0) & (found <= 1.0001)).all()
    text = texts[0]
    whole = learner.judge(trained.weights, [text], nothing)
    reads = torch.from_numpy(text.part(0, len(text.tokens))[0])
    first = learner._window(text, learner._places(text)[0])
    assert torch.equal(first.states, reads[: len(first.tokens)])
    row = text.answer - 1  # drafts the token behind the first of the answer
    head: Any = trained.network
    logits = learner._logits(head, learner._states(head, first), first, first.weight > 0)
    assert float(first.weight[row]) > 0
    assert not first.weight[:row].any()
    chances = [each[0].softmax(-1) for each in logits]
    assert whole[0, 0] == pytest.approx(float(torch.minimum(*chances).sum()), abs=1e-5)
    wide = replace(learner.settings, window=512)
    at_once = HeadLearner(trained, learner._rows.numpy(), learner._embed, wide)
    assert len(at_once._places(text)) == 1
    near = at_once.judge(trained.weights, [text], nothing)
    assert np.abs(near[:20] - whole[:20]).mean() < 0.05


@pytest.mark.parametrize("temperature", [0.3, 1.0, 0.0])
def test_a_head_is_judged_as_it_drafts_at_the_temperature_of_the_text(
    target: NativeModel,
    trained: TrainedHead,
    texts: list[WatchedText],
    temperature: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Greedy texts compare drafts at temperature 1 with the likeliest token."""
    learner = a_learner(target, trained)
    logits, text = learner._logits, replace(texts[0], temperature=temperature)
    overlaps = []
    for factor in (1.0, 3.0):  # the target's own, and sharper ones

        def drafted(*given: Any, factor: float = factor) -> Any:
            true = logits(*given)[1]
            return factor * true, true

        monkeypatch.setattr(learner, "_logits", drafted)
        overlaps.append(float(figures(learner, trained.weights, [text])[0]))
    if temperature:
        assert overlaps[0] > 0.999
        assert overlaps[1] < 0.99
    else:
        assert overlaps[0] < overlaps[1]


def test_rejected_places_count_most(texts: list[WatchedText], target: Any, trained: Any) -> None:
    learner = a_learner(target, trained)
    text = texts[0]
    windows = [learner._window(text, place) for place in learner._places(text)]
    weights = sorted({float(each) for window in windows for each in window.weight})
    assert weights == pytest.approx([0.0, learner.settings.kept, 1.0])
    counted = sum(int((window.weight == 1).sum()) for window in windows)
    assert counted == int(text.rejected[text.answer :].sum())


def test_no_weight_leaves_the_trust_region(
    target: NativeModel, trained: TrainedHead, texts: list[WatchedText]
) -> None:
    for radius, holds in ((0.01, True), (10.0, False)):
        learner = a_learner(target, trained, replace(QUICK, radius=radius, passes=1))
        learnt = learner.train(trained.weights, texts[:5], texts[5:9], nothing)
        beginning, norm = trained.weights, np.linalg.norm
        changes = [
            float(norm(weight - beginning[name]) / norm(beginning[name]))
            for name, weight in learnt.items()
        ]
        assert (max(changes) <= 0.0101) is holds


def test_work_stops_at_each_pause(
    target: NativeModel, trained: TrainedHead, texts: list[WatchedText]
) -> None:
    count = 0

    def pause() -> None:
        nonlocal count
        count += 1
        if count == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        a_learner(target, trained).train(trained.weights, texts, [], pause)
    assert count == 7


def test_numbers_that_are_none_end_in_one_line(
    target: NativeModel, trained: TrainedHead, texts: list[WatchedText]
) -> None:
    broken = replace(texts[0], final=to_bfloat16(np.full(texts[0].final.shape, np.nan, np.float32)))
    with pytest.raises(ValueError, match="loss is no number"):
        a_learner(target, trained).train(trained.weights, [broken], [], nothing)


def test_other_kinds_of_heads_are_refused(target: NativeModel) -> None:
    with pytest.raises(ValueError, match="EAGLE heads, not the kind 'ctc'"):
        a_learner(target, tiny_ctc(target))


def test_the_package_names_the_learner_by_entry_point() -> None:
    says = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    named = re.search(r'\[project.entry-points."draftwood.learners"\]\n\w+ = "(.*):(.*)"', says)
    assert named is not None
    assert getattr(import_module(named[1]), named[2]) is HeadLearner
