"""Sets of layers that a model misses least."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.drafters import Nothing
from draftwood.drafters.resources import Resources
from draftwood.engine import Options, generate
from draftwood.models.model import ForwardInput, Layers, PromptInput
from draftwood.models.native import NativeModel
from draftwood.sampling import Sampling
from draftwood.shapes import Widths
from draftwood.stats import Stats
from draftwood.testing import TableModel, tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Match
from draftwood_methods.drafters.layer_search import LayerSearch
from draftwood_methods.drafters.layer_sets import (
    Units,
    agreement,
    likely_better,
    programme,
    time_ratio,
)
from draftwood_torch.models.transformers import TransformersModel

PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def model() -> NativeModel:
    return NativeModel(tiny_llama(5, layers=8))


def uneven(layers: int = 8, weak: tuple[int, ...] = (2, 3, 6)) -> NativeModel:
    """A model some of whose layers give nearly nothing."""
    hf_model: Any = tiny_llama(5, layers=layers)
    with torch.no_grad():
        for layer in weak:
            hf_model.model.layers[layer].self_attn.o_proj.weight *= 1e-3
            hf_model.model.layers[layer].mlp.down_proj.weight *= 1e-3
    return NativeModel(hf_model)


def test_sets_save_what_they_should() -> None:
    chance = np.random.default_rng(0)
    for units in (Units(8, False), Units(8, True, 3), Units(30, True, 1)):
        for share in (0.2, 0.4, 0.6):
            for left_out in (units.evenly(share), units.drawn(share, chance)):
                assert share <= units.share(left_out) < share + 0.13
                layers = units.layers(left_out)
                assert not {0, units.depth - 1} & (layers.without_attention | layers.without_mlp)
            near = units.neighbour(left_out, chance)
            assert units.share(near) == pytest.approx(units.share(left_out))
            assert np.sum(near != left_out) in (0, 2)
    evenly = Units(12, False).layers(Units(12, False).evenly(0.3))
    assert evenly.without_mlp == evenly.without_attention == {2, 4, 6, 8}


@pytest.mark.parametrize("halves", [False, True])
def test_a_programme_finds_the_layers_that_give_nothing(halves: bool) -> None:
    target = uneven()
    session: Any = target.start()
    session.extend([*PROMPT, 6, 7, 8])
    units = Units(8, halves, 1)
    found = units.layers(programme(session, [7, 8], units, 3 / 8))
    assert found.without_mlp == found.without_attention == {2, 3, 6}
    assert session.length == 8  # nothing became of the text


@pytest.mark.parametrize(("mlp", "ratio"), [(2.0, 2), (0.1, 1), (40.0, 8)])
def test_the_price_of_halves_is_measured(
    mlp: float, ratio: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, now = uneven(), [0.0]
    run = target.forward

    def forward(given: Any) -> Any:
        if isinstance(given[0], PromptInput):
            return run(given)
        layers, inner = given[0].layers, target.layers - 2
        attentions, mlps = (
            inner - len(left_out) for left_out in (layers.without_attention, layers.without_mlp)
        )
        now[0] += 5.0 + attentions + mlp * mlps
        return run(given)

    monkeypatch.setattr(target, "forward", forward)
    monkeypatch.setattr("draftwood_methods.drafters.layer_sets.time.perf_counter", lambda: now[0])
    assert time_ratio(target) == ratio
    fitted = LayerSearch(halves=True).fitted(target)
    assert fitted.ratio == ratio
    assert fitted.first is not None
    assert len(fitted.first) == 2 * (target.layers - 2)


def test_a_programme_over_few_units_finds_nearly_the_best_of_all_sets() -> None:
    """By the cosine of the states with which they come out; the worst is the control."""
    target = NativeModel(tiny_llama(3, layers=6))
    session: Any = target.start()
    session.extend([*PROMPT, 6, 7, 8])
    units = Units(6, False)

    def cosine(left_out: tuple[int, ...]) -> float:
        out = np.zeros(4, dtype=bool)
        out[list(left_out)] = True
        fork = session.fork(length=6)
        tree = DraftTree.chain([7, 8])
        states = [
            target.forward([ForwardInput(fork, tree, layers=layers)])[0].states(5)[1]
            for layers in (Layers(stop=5), units.layers(out))
            for layers in (
                Layers(
                    stop=5,
                    **{
                        name: getattr(layers, name) for name in ("without_attention", "without_mlp")
                    },
                ),
            )
        ]
        fork.close()
        return float(torch.cosine_similarity(*states, dim=0))

    every = {pair: cosine(pair) for pair in itertools.combinations(range(4), 2)}
    chosen = tuple(np.flatnonzero(programme(session, [7, 8], units, 2 / 6)).tolist())
    ranked = sorted(every, key=every.__getitem__)
    assert chosen in ranked[-3:]
    assert every[ranked[0]] < every[chosen]


def test_a_bayesian_step_goes_where_sets_were_good() -> None:
    """Sets are good that leave out units of the first half; a random one has half of these."""
    units, chance = Units(18, False), np.random.default_rng(0)
    good = np.arange(16) < 8

    def score(left_out: Any) -> float:
        return float((left_out & good).sum() / left_out.sum())

    seen = [(own, score(own)) for own in (units.drawn(0.4, chance) for _ in range(30))]
    found = [score(likely_better(units, seen, 0.4, chance)) for _ in range(10)]
    drawn = [score(units.drawn(0.4, chance)) for _ in range(200)]
    assert np.mean(found) > np.mean(drawn) + 0.15
    reverse = [(own, 1 - value) for own, value in seen]  # control
    assert score(likely_better(units, reverse, 0.4, chance)) < np.mean(drawn)


def test_agreement_is_the_share_of_tokens_a_part_would_have_written(model: NativeModel) -> None:
    session: Any = model.start()
    options = Options(Sampling(0.0), max_new_tokens=40)
    text = [*PROMPT]
    text += [t for s in generate(model, Nothing(), Match(), PROMPT, options) for t in s.tokens]
    session.extend(text)
    assert agreement(session, text[-20:], Layers()) == 1.0
    assert agreement(session, text[-20:], Units(8, False).layers(np.ones(6, dtype=bool))) < 1.0
    assert session.length == len(text)


@pytest.mark.parametrize("search", ["swift", "programme"])
def test_searching_changes_drafts_and_no_text(search: Any) -> None:
    target = uneven()
    kept: list[Any] = []

    class Kept(LayerSearch):
        def start(self, request: Any) -> Any:
            kept.append(super().start(request))
            return kept[-1]

    def written(drafter: Any) -> tuple[list[int], Stats]:
        options = Options(Sampling(0.0), max_new_tokens=60)
        steps = list(generate(target, drafter, Match(), PROMPT, options))
        return [token for step in steps for token in step.tokens], Stats.of(steps)

    plain, _ = written(Nothing())
    never, before = written(Kept(search, 3 / 8, 0.0, shape=Widths((1, 1))))
    often, after = written(Kept(search, 3 / 8, 12.0, shape=Widths((1, 1))))
    assert plain == never == often
    assert kept[0].layers == kept[0].units.layers(kept[0].units.evenly(3 / 8))
    assert kept[1].layers != kept[0].layers
    gained = after.accepted / after.drafted - before.accepted / before.drafted
    assert gained > (0.05 if search == "programme" else -0.1)  # the other one draws sets


def test_searches_take_no_more_than_their_part(model: NativeModel) -> None:
    session: Any = None

    class Kept(LayerSearch):
        def start(self, request: Any) -> Any:
            nonlocal session
            session = super().start(request)
            session.searches = 0
            found = session._found

            def counted() -> Any:
                session.searches += 1
                return found()

            session._found = counted
            return session

    options = Options(Sampling(0.0), max_new_tokens=100)
    steps = list(generate(model, Kept("programme", most=0.5), Match(), PROMPT, options))
    assert 1 <= session.searches <= 0.5 * len(steps) / 12


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_shares_that_are_none_are_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share is above 0 and at most"):
        LayerSearch(share=share)


def test_searches_that_there_are_not_and_sets_of_other_models() -> None:
    with pytest.raises(ValueError, match=r"search is programme, as in CLaSp .*, got 'clasp'"):
        LayerSearch("clasp")  # type: ignore[arg-type]
    drafter = LayerSearch(first=(True, False))
    with pytest.raises(ValueError, match=r"first says of each of \d+ parts .*, got 2"):
        list(generate(uneven(), drafter, Match(), [1], Options()))


def test_models_of_few_layers_are_refused() -> None:
    for model in (TransformersModel(tiny_llama(5, layers=3)), TableModel(torch.eye(8))):
        with pytest.raises(ValueError, match="layer-search needs a model of at least 4 layers"):
            list(generate(model, LayerSearch(), Match(), [1], Options()))


def test_a_method_begins_with_what_the_model_misses_least_alone() -> None:
    drafter = LayerSearch.build(Resources(uneven()))
    assert isinstance(drafter, LayerSearch)
    assert drafter.first is not None
    layers = drafter.units(uneven()).layers(np.array(drafter.first))
    assert layers.without_mlp >= {2, 3, 6}
