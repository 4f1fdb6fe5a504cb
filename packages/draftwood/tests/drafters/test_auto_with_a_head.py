"""`auto` with a trained drafter writes what plain decoding writes, and asks where it pays."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from draftwood import engine, methods
from draftwood.drafters import multi_source
from draftwood.drafters.multi_source import MultiSource
from draftwood.engine import Options, generate_batch
from draftwood.engine.parallel_sampling import ParallelSampling
from draftwood.engine.scheduler import run_all
from draftwood.heads.trained import TrainedHead
from draftwood.methods import Method
from draftwood.models.native import NativeModel
from draftwood.models.verified import PredictedText
from draftwood.native import library
from draftwood.sampling import Sampling
from draftwood.sources import NGrams, Suffix
from draftwood.sources.acceptance import RESTING, Resting
from draftwood.sources.trained_head import TrainedHeadSource
from draftwood.stats import Stats, Step
from draftwood.testing import tiny_llama
from draftwood_torch.lean.model import LeanModel
from merged_trees import BUDGET
from reference.merger import PythonMerger
from tiny_heads import tiny_ctc, tiny_eagle

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")

PROMPTS = ([5, 6, 7, 5, 6, 7, 5, 6], [9, 2, 9], [1] * 40)


@pytest.fixture(scope="module")
def target() -> NativeModel:
    return NativeModel(tiny_llama(0, layers=6))


@pytest.fixture(scope="module")
def trained(target: NativeModel) -> TrainedHead:
    return tiny_eagle(target, range(target.vocab_size))


def auto(target: NativeModel, trained: TrainedHead | None) -> Method:
    return methods.build("auto", target, head=trained)


def sequence(
    target: NativeModel, method: Method, prompt: Sequence[int], temperature: float, **more: int
) -> engine.Sequence:
    options = Options(Sampling(temperature), 60, **{"seed": 3, **more})
    return engine.Sequence(target, method.drafter, method.verifier, prompt, options)


def steps_of(
    target: NativeModel, method: Method, temperature: float, prompts: Sequence[Sequence[int]]
) -> list[list[Step]]:
    requests = [sequence(target, method, prompt, temperature) for prompt in prompts]
    found: list[list[Step]] = [[] for _ in requests]
    for number, step in generate_batch(requests):
        found[number].append(step)
    return found


def texts(steps: list[list[Step]]) -> list[list[int]]:
    return [[token for step in each for token in step.tokens] for each in steps]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_those_of_plain_decoding(
    temperature: float, target: NativeModel, trained: TrainedHead
) -> None:
    plain = methods.build("plain", target)
    wanted = texts(steps_of(target, plain, temperature, PROMPTS))
    method = auto(target, trained)
    assert texts(steps_of(target, method, temperature, PROMPTS)) == wanted  # piece by piece
    alone = [steps_of(target, method, temperature, [prompt])[0] for prompt in PROMPTS]
    assert texts(alone) == wanted  # steps of the library
    assert any("eagle" in Stats.of(each).sources for each in alone)
    unaided = steps_of(target, auto(target, None), temperature, PROMPTS)
    assert not any("eagle" in Stats.of(each).sources for each in unaided)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_prediction_goes_with_the_head(
    temperature: float, target: NativeModel, trained: TrainedHead
) -> None:
    """The head drafts where the prediction says nothing."""
    plain, method = methods.build("plain", target), auto(target, trained)
    wanted = texts(steps_of(target, plain, temperature, PROMPTS))
    asked = False
    for prompt, text in zip(PROMPTS, wanted, strict=True):
        predicted = PredictedText([*text[:20], *[0] * 9])
        options = Options(Sampling(temperature), 60, seed=3, predicted=predicted)
        request = engine.Sequence(target, method.drafter, method.verifier, prompt, options)
        steps = [step for _, step in generate_batch([request])]
        assert [token for step in steps for token in step.tokens] == text
        assert Stats.of(steps).sources["prediction"].accepted >= 10
        assert predicted.followed >= 20
        asked |= "eagle" in Stats.of(steps).sources
    assert asked


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_several_answers_are_each_its_own(
    temperature: float, target: NativeModel, trained: TrainedHead
) -> None:
    method = auto(target, trained)
    members = [sequence(target, method, PROMPTS[0], temperature, seed=seed) for seed in range(3)]
    found: list[list[int]] = [[] for _ in members]
    for _, progress in run_all([ParallelSampling(members)]):
        for number, step in progress:
            found[number] += step.tokens
    plain = methods.build("plain", target)
    for seed, text in enumerate(found):
        alone = sequence(target, plain, PROMPTS[0], temperature, seed=seed)
        assert text == [token for _, step in generate_batch([alone]) for token in step.tokens]


def test_log_probabilities_are_those_of_plain_decoding(
    target: NativeModel, trained: TrainedHead
) -> None:
    found = []
    for method in (auto(target, trained), methods.build("plain", target)):
        request = sequence(target, method, PROMPTS[0], 0.0, logprobs=2)
        steps = [step for _, step in generate_batch([request])]
        found.append([each.logprob for step in steps for each in step.logprobs or ()])
    assert found[0] == pytest.approx(found[1], abs=1e-5)
    assert len(found[0]) == 60


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seconds", [(1e-6, 1e-6), (0.1, 0.05)])
def test_the_same_trees_from_the_library_and_from_python(
    seconds: tuple[float, float],
    temperature: float,
    target: NativeModel,
    trained: TrainedHead,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = TrainedHeadSource.of(trained, target)
    head = replace(head, seconds=seconds, is_timed=False, resting=None)
    drafter = MultiSource((Suffix(), head, NGrams()), BUDGET)
    method = replace(auto(target, None), drafter=drafter)

    def alone() -> list[list[Step]]:
        return [steps_of(target, method, temperature, [prompt])[0] for prompt in PROMPTS]

    whole, together = alone(), steps_of(target, method, temperature, PROMPTS)
    monkeypatch.setattr(multi_source, "Merger", PythonMerger)
    assert _trees(whole)
    assert _trees(whole) == _trees(alone())
    for one, other in zip(whole, together, strict=True):  # in company trees are smaller
        assert [t for step in one for t in step.tokens] == [t for s in other for t in s.tokens]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("resting", [None, RESTING], ids=["alone", "shared"])
def test_a_head_is_asked_below_the_root(
    resting: Resting | None, temperature: float, target: NativeModel, trained: TrainedHead
) -> None:
    """Texts may share what it was worth, and may not."""
    head = TrainedHeadSource.of(trained, target)
    head = replace(head, seconds=(1e-6, 1e-6), is_timed=False, resting=resting)
    method = replace(auto(target, None), drafter=MultiSource((head,), BUDGET))
    steps = steps_of(target, method, temperature, [PROMPTS[0]])[0]
    trees = [step.tree for step in steps if step.tree is not None]
    assert max(tree.depth for tree in trees) >= 3


def test_each_step_says_how_long_the_head_took(target: NativeModel, trained: TrainedHead) -> None:
    """Also those that were made in a row."""
    head = replace(TrainedHeadSource.of(trained, target), seconds=(1e-6, 1e-6))
    method = replace(auto(target, None), drafter=MultiSource((head,), BUDGET))
    steps = steps_of(target, method, 0.0, [PROMPTS[0]])[0]
    drafted = [step for step in steps if step.drafted]
    assert len(drafted) > 8
    assert all(0 < step.drafter_seconds <= step.seconds["draft"] for step in drafted[1:])


def _trees(requests: list[list[Step]]) -> list[tuple[object, ...]]:
    return [
        (step.tokens, step.tree and (step.tree.token_list, step.tree.parent_list))
        for steps in requests
        for step in steps
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("part", [1, 2])
def test_a_head_in_pytorch_drafts_in_auto_too(
    part: int, temperature: float, target: NativeModel
) -> None:
    """Also one that knows a part of the vocabulary."""
    lean = LeanModel(tiny_llama(0, layers=6))
    head = tiny_eagle(target, range(0, target.vocab_size, part))
    method = methods.build("auto", lean, head=head, curve=lambda rows: 1 + 0.01 * rows)
    plain = methods.build("plain", lean)
    found = steps_of(lean, method, temperature, PROMPTS)
    assert texts(found) == texts(steps_of(lean, plain, temperature, PROMPTS))
    assert all("eagle" in Stats.of(steps).sources for steps in found)


def test_heads_of_other_kinds_are_refused(target: NativeModel) -> None:
    with pytest.raises(ValueError, match="does not draft with a drafter of the kind 'ctc'"):
        methods.build("auto", target, head=tiny_ctc(target))
