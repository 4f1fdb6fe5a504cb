"""A head that is worth nothing is left alone by all texts, and tried again."""

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from draftwood import methods
from draftwood.costs.budget import Budget
from draftwood.drafters import DraftRequest, VerifiedTree
from draftwood.drafters.multi_source import MultiSource
from draftwood.engine import Options, Sequence, generate_batch
from draftwood.models.model import ModelOutput
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.native.drafting import Drafting
from draftwood.native.step import NativeDraft
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.sources import NearestState, NGrams, Suffix
from draftwood.sources.acceptance import Estimator, Resting
from draftwood.sources.merger import Merger
from draftwood.sources.source import Candidates, Evidence, Source
from draftwood.sources.trained_head import TrainedHeadSource
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree
from merged_trees import BUDGET
from tiny_heads import sure_eagle

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")

RESTING = Resting(least=16, shortest=40, longest=160)
FEW = 30  # tokens of a vocabulary


@pytest.fixture(scope="module")
def target() -> NativeModel:
    return NativeModel(tiny_llama(0, layers=6))


@pytest.fixture(scope="module")
def source(target: NativeModel) -> TrainedHeadSource:
    """A head of noise, which is sure of what it says; questions cost a tenth of a pass."""
    made = TrainedHeadSource.of(sure_eagle(target, range(target.vocab_size)), target)
    return replace(made, seconds=(0.1, 0.05), is_timed=False, resting=RESTING)


@dataclass
class Watched:
    """Steps of texts that share a source: whether states were read, and how many questions came."""

    source: TrainedHeadSource
    target: NativeModel
    temperature: float = 0.0
    others: tuple[Source, ...] = ()
    budget: Budget = BUDGET

    def text(self, steps: int, is_right: bool, seed: int = 0) -> list[tuple[bool, bool]]:
        """A text that goes on as the head says, or never does; by step whether states were read
        and the head had a part in the tree.
        """
        request = DraftRequest(Sampling(self.temperature), Rng(seed), self.target.start())
        merged = Merger((*self.others, self.source), Estimator(), request)
        chance, found = random.Random(seed), []
        for _ in range(steps):
            grown = merged.grow(chance.randrange(self.target.vocab_size), self.budget)
            tree, path = DraftTree.of(grown.tokens, grown.parents), [0]
            while is_right and tree.children[path[-1]]:
                path.append(tree.children[path[-1]][0])
            reads = bool(merged.reads)
            merged.learn(VerifiedTree(tree, path, self._output(len(tree), merged.reads)), False)
            found.append((reads, len(tree) > 1))
            for _ in path:
                request.rng.draw(np.ones(2))
        return found

    def _output(self, nodes: int, layers: tuple[int, ...]) -> ModelOutput:
        states = np.random.default_rng(nodes).normal(size=(nodes, self.target.hidden_size))
        hidden = {layer: states.astype(np.float32) for layer in layers}
        return ModelOutput(np.zeros((nodes, self.target.vocab_size), np.float32), hidden)


def share(steps: list[tuple[bool, bool]], part: int) -> float:
    return sum(step[part] for step in steps) / len(steps)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_wrong_head_is_left_alone_by_all_texts(
    temperature: float, source: TrainedHeadSource, target: NativeModel
) -> None:
    texts = Watched(replace(source), target, temperature)
    first = texts.text(150, is_right=False)
    assert first[0][0]
    assert share(first[:16], 1) > 0.5  # it is asked, and has drafts
    assert share(first, 0) < 1.0
    later = [step for seed in range(1, 20) for step in texts.text(60, is_right=False, seed=seed)]
    assert share(later, 0) < 0.2  # of states that are read
    assert share(later, 1) < 0.2
    assert share(later[-300:], 0) < 0.7 * share(first, 0)  # rests become longer


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_right_head_is_asked_and_one_that_becomes_right_again(
    temperature: float, source: TrainedHeadSource, target: NativeModel
) -> None:
    texts = Watched(replace(source), target, temperature)
    assert share(texts.text(200, is_right=True), 0) == 1.0
    assert share(texts.text(400, is_right=False, seed=1), 0) < 0.8
    texts.text(200, is_right=True, seed=2)  # a rest may have to end first
    again = texts.text(200, is_right=True, seed=3)
    assert share(again, 0) == 1.0
    assert share(again, 1) > 0.9


@dataclass
class Crowd:
    """Every token after every text, each of them unlikely."""

    name = "crowd"
    reads_logits = False

    def start(self, request: DraftRequest) -> "Crowd":
        return self

    def learn(self, verified: VerifiedTree) -> None: ...

    def begin(self, root: int) -> int:
        return root

    def advance(self, state: int, token: int) -> int:
        return token

    def candidates(self, state: int) -> list[Candidates]:
        order = random.Random(state).sample(range(FEW), FEW)
        return [
            (Evidence(self.name, 1), {token: 0.021 + 0.001 * at for at, token in enumerate(order)})
        ]


@pytest.mark.parametrize("is_right", [True, False])
def test_what_others_hold_unlikely_too_is_worth_a_head_while_few_tokens_are_run(
    is_right: bool,
) -> None:
    """A second node is nearly free and all others are dear: of the crowd's tokens one is run."""
    target = NativeModel(tiny_llama(0, layers=6, vocab=FEW))
    head = TrainedHeadSource.of(sure_eagle(target, range(FEW)), target)
    head = replace(head, seconds=(0.1, 0.1), is_timed=False, resting=RESTING)
    stepped = Budget(lambda nodes: 1.0 + 0.3 * max(0, nodes - 2), 0.0, 0.0, 24)
    texts = Watched(head, target, others=(Crowd(),), budget=stepped)
    found = [step for seed in range(4) for step in texts.text(100, is_right, seed)]
    assert (share(found, 0) == 1.0) is is_right


def test_all_layers_are_told_of_where_some_were_not_computed(
    source: TrainedHeadSource, target: NativeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, learn = [], Drafting.learn

    def watched(drafting: Drafting, *what: Any) -> None:
        told.append(what[-1])
        learn(drafting, *what)

    monkeypatch.setattr(Drafting, "learn", watched)
    request = DraftRequest(Sampling(0.0), Rng(0), target.start())
    both = (source, NearestState(0, target.hidden_size))
    merged, tree = Merger(both, Estimator(), request), DraftTree.of([5], [-1])
    output = Watched(source, target)._output(1, (0,))  # as while the head rests
    merged.learn(VerifiedTree(tree, [0], output), False)
    assert set(told[0]) == {0, *source.layers}
    assert [layer for layer, each in told[0].items() if each is not None] == [0]


def test_without_rests_a_wrong_head_is_read_in_every_step(
    source: TrainedHeadSource, target: NativeModel
) -> None:
    texts = Watched(replace(source, resting=None), target)
    found = [step for seed in range(5) for step in texts.text(60, is_right=False, seed=seed)]
    assert share(found, 0) == 1.0


def test_texts_of_temperature_0_and_others_learn_apart(
    source: TrainedHeadSource, target: NativeModel
) -> None:
    own = replace(source)
    greedy, drawn = Watched(own, target, 0.0), Watched(own, target, 1.0)
    while greedy.text(10, is_right=False)[-1][0]:
        pass
    assert drawn.text(1, is_right=False)[0][0]
    assert not greedy.text(1, is_right=False)[0][0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rests_leave_every_text_as_it_is(
    temperature: float, source: TrainedHeadSource, target: NativeModel, reads: list[bool]
) -> None:
    resting = Resting(least=4, shortest=8, longest=16, doubt=0.5)
    method = replace(methods.build("auto", target), drafter=_drafter(source, resting))
    for number in range(6):
        prompt = [number, 7, number, 7, 9]
        wanted = _text(target, methods.build("plain", target), prompt, temperature)
        assert _text(target, method, prompt, temperature) == wanted
    assert {True, False} <= set(reads)


def _drafter(source: TrainedHeadSource, resting: Resting) -> MultiSource:
    return MultiSource((Suffix(), NGrams(), replace(source, resting=resting)), BUDGET)


def _text(
    target: NativeModel, method: methods.Method, prompt: list[int], temperature: float
) -> list[int]:
    options = Options(Sampling(temperature), 80, seed=3)
    text = Sequence(target, method.drafter, method.verifier, prompt, options)
    return [token for _, step in generate_batch([text]) for token in step.tokens]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Flags that tell, by call of the library, whether states were read."""
    found, native = [], Merger.native

    def told(merged: Merger, *how: Any) -> NativeDraft:
        draft = native(merged, *how)
        found.append(bool(draft.hidden))
        return draft

    monkeypatch.setattr(Merger, "native", told)
    return found


def test_a_rest_from_drafting_reads_states_in_its_last_steps_alone(
    source: TrainedHeadSource, target: NativeModel, reads: list[bool]
) -> None:
    dear = replace(BUDGET, per_step=3.0)  # no draft is worth it
    drafter = MultiSource((Suffix(), replace(source, resting=Resting(least=1000))), dear)
    method = replace(methods.build("auto", target), drafter=drafter)
    _text(target, method, [5, 6, 7, 5, 6, 7, 5, 6], 0.0)
    assert 0.1 < sum(reads) / len(reads) < 0.9
    assert reads[0]
