"""Trees that the target's first layers cut."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood import engine
from draftwood.costs.budget import Budget
from draftwood.drafters import DraftRequest
from draftwood.drafters.resources import Resources
from draftwood.engine import Options, generate, generate_batch
from draftwood.models.model import Layers
from draftwood.models.native import NativeModel
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling, SharedPass
from draftwood.shapes import Paths
from draftwood.stats import Step
from draftwood.testing import TableModel, tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Match, Rejection
from draftwood_methods.drafters.pruned import Pruned, _PrunedSession
from draftwood_methods.drafters.token_recycling import TokenRecycling
from draftwood_methods.exits import Exits
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel
from passes import passes_of

PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def model() -> NativeModel:
    return NativeModel(tiny_llama(5, layers=6))


def steps_of(
    model: Any, drafter: Any, temperature: float = 0.0, tokens: int = 40, rule: Any = None
) -> list[Step]:
    options = Options(Sampling(temperature), max_new_tokens=tokens, seed=3)
    return list(generate(model, drafter, rule or Match(), PROMPT, options))


def text_of(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_cut_tree_changes_no_text(model: NativeModel, temperature: float) -> None:
    exits = Exits.of(model, layers=(3,), most=256)
    whole = text_of(steps_of(model, TokenRecycling(), temperature))
    for layer, least in ((3, 0.02), (2, None), (5, 1.0)):
        steps = steps_of(model, Pruned(TokenRecycling(), layer, exits, least=least), temperature)
        assert text_of(steps) == whole
    assert max(step.drafted for step in steps) == 0  # no chance is 1: plain steps


@pytest.mark.parametrize("path", [LeanModel, TransformersModel])
def test_a_cut_tree_changes_no_text_on_other_paths(path: Any) -> None:
    model, small = path(tiny_llama(5, layers=4)), Paths(((0,), (1,), (0, 0), (1, 0), (0, 1)))
    for temperature in (0.0, 1.0):
        whole = steps_of(model, TokenRecycling(small), temperature, 16)
        steps = steps_of(model, Pruned(TokenRecycling(small), 2, least=0.2), temperature, 16)
        assert text_of(steps) == text_of(whole)
        assert 0 < sum(step.drafted for step in steps) < sum(step.drafted for step in whole)


def test_only_what_is_left_runs_the_other_layers(
    model: NativeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = passes_of(model, monkeypatch)
    steps = steps_of(model, Pruned(TokenRecycling(), 3, least=0.02))
    whole = [each.rows for each in seen if each.layers == Layers(stop=3)]
    left = [each.rows for each in seen if each.layers != Layers(stop=3)]
    assert [count - 1 for count in left] == [step.drafted for step in steps[1:]]
    assert len(whole) > 8  # what was never seen has no successors to draft
    assert sum(left) < 0.5 * sum(whole)


def test_requests_side_by_side_write_what_each_writes_alone(model: NativeModel) -> None:
    drafter = Pruned(TokenRecycling(), 3, least=0.02)
    alone = [text_of(steps_of(model, drafter, each)) for each in (0.0, 1.0)]
    asked = [
        engine.Sequence(model, drafter, Match(), PROMPT, Options(Sampling(each), 40, seed=3))
        for each in (0.0, 1.0)
    ]
    texts: list[list[int]] = [[], []]
    for number, step in generate_batch(asked):
        texts[number] += step.tokens
    assert texts == alone


def linear(per_node: float) -> Budget:
    return Budget(lambda nodes: 1.0 + per_node * (nodes - 1), 0.0, 0.0)


TREE = DraftTree.of([0, 1, 2, 3, 4], [-1, 0, 0, 1, 2])
CHANCES = [1.0, 0.6, 0.2, 0.3, 0.05]


def test_nodes_stay_as_long_as_they_pay() -> None:
    now = Context([0], 1)

    def kept(per_node: float, share: float = 0.5, now: Context = now) -> list[int]:
        drafter = Pruned(TokenRecycling(), 1, budget=linear(per_node))
        return drafter.kept(TREE, CHANCES, share, now)

    # half of 1 + 4c is spent, n nodes cost half of 1 + nc: the best of their rates
    assert [kept(cost) for cost in (0.01, 0.2, 1.0, 100.0)] == [
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3],
        [0, 1, 3],
        [0, 1],
    ]
    assert kept(1.5, share=0.01) == [0]
    assert kept(1.5, share=0.99) == [0, 1, 2, 3, 4]  # hardly anything is left to save
    others = replace(now, shared=SharedPass(rows=4, tokens=4.0))
    assert len(kept(0.2, now=others)) < len(kept(0.2))  # others wait for each node
    least = Pruned(TokenRecycling(), 1, least=0.2)
    assert least.kept(TREE, CHANCES, 0.5, now) == [0, 1, 2, 3]


def test_trust_follows_what_came_true(model: NativeModel) -> None:
    session = model.start()
    request = DraftRequest(Sampling(0.0), Rng(0), session)
    draft = Pruned(TokenRecycling(), 3).start(request)
    assert isinstance(draft, _PrunedSession)
    shares = [1.0, 0.5, 0.25, 1.0, 1.0]
    # below the root: one that is first among its siblings, then one that is second; then neither
    for text, gained in (([1, 3, 7], (1.98, 0.0)), ([2, 8], (0.0, 1.0)), ([5], (0.0, 0.0))):
        before, draft.newest = list(draft.seen), (TREE, 1, shares)
        draft._learn(text[-1], Context([9, 0, *text[:-1]], 1))
        for place, looks in ((0, len(text[:2])), (1, 1)):
            right = 0.98**looks * before[place][0] + gained[place]
            assert draft.seen[place][0] == pytest.approx(right)
    first, second = draft._chances(TREE, shares)[1:3]
    assert first == pytest.approx(0.5 * draft.seen[0][0] / draft.seen[0][1])
    assert second == pytest.approx(0.25 * draft.seen[1][0] / draft.seen[1][1])
    session.close()


def test_what_cannot_be_is_refused(model: NativeModel) -> None:
    for layer in (0, 6):
        with pytest.raises(ValueError, match=f"before one of layers 1..5, got {layer}"):
            steps_of(model, Pruned(TokenRecycling(), layer))
    with pytest.raises(ValueError, match="between 0 and 1, got 2"):
        Pruned(TokenRecycling(), 2, least=2)
    table = TableModel(torch.eye(8))
    with pytest.raises(ValueError, match="pruned needs a model of at least 4 layers"):
        Pruned.build(Resources(table))
    with pytest.raises(ValueError, match="pruned needs a model of at least 4 layers"):
        steps_of(table, Pruned(TokenRecycling(), 1))
    with pytest.raises(ValueError, match="rejection verification changes what the model would say"):
        steps_of(model, Pruned(TokenRecycling(), 3), 1.0, rule=Rejection())
