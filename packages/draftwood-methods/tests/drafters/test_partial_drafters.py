"""Drafters that run the target itself, in part."""

from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import methods
from draftwood.costs import disturbance
from draftwood.drafters import Int4SelfDraft
from draftwood.drafters.drafter import Drafter
from draftwood.drafters.resources import Resources
from draftwood.engine import Options, generate
from draftwood.models.model import ForwardInput, Layers
from draftwood.models.native import NativeModel, has_int8
from draftwood.sampling import Sampling
from draftwood.shapes import Widths
from draftwood.sources.stored_prior import StoredPrior
from draftwood.stats import Stats
from draftwood.storage import weights as storage
from draftwood.testing import TableModel, tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Match, Rejection, Verifier
from draftwood_methods import exits as fitting
from draftwood_methods.drafters.dynamic_exit import DynamicExit, best_length
from draftwood_methods.drafters.early_exit import EarlyExit
from draftwood_methods.drafters.windowed import Windowed
from draftwood_methods.exits import Exits, exits_for
from draftwood_torch.models.transformers import TransformersModel
from passes import passes_of

PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def model() -> NativeModel:
    return NativeModel(tiny_llama(5, layers=6))


@pytest.fixture(scope="module")
def exits(model: NativeModel) -> Exits:
    return Exits.of(model, layers=(2, 3), most=1024)


def written(
    model: Any, drafter: Drafter, verifier: Verifier, tokens: int = 24, sampling: Any = None
) -> tuple[list[int], Stats]:
    options = Options(sampling or Sampling(0.0), max_new_tokens=tokens, seed=3)
    steps = list(generate(model, drafter, verifier, PROMPT, options))
    return [token for step in steps for token in step.tokens], Stats.of(steps)


def test_no_layer_is_run_twice_for_a_token(
    model: NativeModel, exits: Exits, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = passes_of(model, monkeypatch)
    written(model, EarlyExit(2, exits, Widths((1, 1, 1))), Match(), tokens=9)
    drafting, stopped, rest = Layers(stop=2), (Layers(stop=2), 1), (Layers(start=2), 4)
    assert [(each.layers, each.rows) for each in seen[:5]] == [
        *[(drafting, 1)] * 3,
        *(stopped, rest),
    ]


def test_a_model_that_goes_on_writes_what_it_writes_alone(model: NativeModel, exits: Exits) -> None:
    for temperature in (0.0, 1.0):
        sampling = Sampling(temperature)
        plain = written(model, Windowed(), Match(), sampling=sampling)[0]
        drafters = [EarlyExit(2, exits, Widths((2, 2))), DynamicExit((2, 3), exits)]
        for drafter in (*drafters, Int4SelfDraft(Widths((2, 1)))):
            assert written(model, drafter, Match(), sampling=sampling)[0] == plain


def test_a_map_says_more_than_none_and_one_of_shuffled_pairs_less(
    model: NativeModel, exits: Exits
) -> None:
    """Divergence of a layer's predictions from the model's; shuffled pairs are the control."""
    states = torch.cat([each[2] for each in fitting._written(model, (7,), (2,), float("inf"), 256)])
    last = torch.cat([each[6] for each in fitting._written(model, (7,), (6,), float("inf"), 256)])
    sums = fitting._Sums()
    for number, (own, other) in enumerate(
        zip(states.split(16), last.roll(5, 0).split(16), strict=True)
    ):
        sums.add(own, other, number % 8 == 7)
    shuffled = sums.fit()
    assert shuffled is not None
    head = model.embeddings_and_head
    right = head.logits(last, normed=True).log_softmax(-1)

    def off(logits: torch.Tensor) -> float:
        return float((right.exp() * (right - logits.log_softmax(-1))).sum(-1).mean())

    own = off(head.logits(exits.normed(2, states), normed=True))
    control = off(head.logits(Exits({2: shuffled}).normed(2, states), normed=True))
    assert own < 0.8 * control
    assert own < 0.8 * off(head.logits(states))


def test_what_no_map_can_be_found_for_has_none() -> None:
    sums = fitting._Sums()
    assert sums.fit() is None
    for hold in (False, True):
        sums.add(torch.full((16, 4), float("nan")), torch.ones(16, 4), hold)
    assert sums.fit() is None
    nothing = fitting._Sums()
    for hold in (False, True):
        nothing.add(torch.zeros(16, 4), torch.ones(16, 4), hold)
    assert nothing.fit() is None
    drafter = EarlyExit(2, Exits({}), Widths((1, 1)))  # goes without
    assert written(NativeModel(tiny_llama(5, layers=6)), drafter, Match(), 8)[1].drafted


def test_maps_are_those_of_their_own_weights(exits: Exits, tmp_path: Path) -> None:
    path = tmp_path / "exits.safetensors"
    exits.save(path, "mine")
    again = Exits.load(path, "mine")
    assert again.maps.keys() == exits.maps.keys()
    assert all((again.maps[k] - exits.maps[k]).abs().max() < 1e-2 for k in exits.maps)
    with pytest.raises(ValueError, match="holds the exits of other weights; delete it"):
        Exits.load(path, "others")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="holds no exits"):
        Exits.load(path, "mine")


def test_maps_are_fitted_once_for_each_model(
    model: NativeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "home", lambda: tmp_path / "home")
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"weights")
    fitted = []

    def fit(*given: object, **options: object) -> Exits:
        fitted.append(given)
        return Exits({1: torch.eye(4)})

    monkeypatch.setattr(Exits, "of", fit)
    given = Resources(model, stored=StoredPrior(model, (0,), weights.parent))
    with monkeypatch.context() as patch:  # beside other programs: on too little text to keep
        patch.setattr(disturbance, "is_disturbed", lambda share: True)
        exits_for(given)
    fitted.clear()
    monkeypatch.setattr(disturbance, "is_disturbed", lambda share: False)
    exits_for(given)
    found = exits_for(given)
    assert found is not None
    assert found.maps[1].shape == (4, 4)
    assert len(fitted) == 1
    (path,) = (tmp_path / "home" / "exits").iterdir()
    path.write_bytes(b"half")  # damaged: fitted again
    exits_for(given)
    assert len(fitted) == 2
    weights.write_bytes(b"other weights")
    exits_for(given)
    assert len(fitted) == 3
    exits_for(Resources(model, stored=StoredPrior(model)))  # from memory: not stored
    assert len(list((tmp_path / "home" / "exits").iterdir())) == 2


def test_a_dynamic_exit_drafts_what_pays() -> None:
    assert best_length(0.9, 5, 30, 8) == (7, pytest.approx(5.6953279 / 65))
    assert best_length(0.1, 15, 30, 8)[0] == 0
    assert best_length(0.6, 6, 30, 8)[0] == 2
    rates = [best_length(share, 6, 30, 8)[1] for share in (0.2, 0.5, 0.8)]
    assert rates == sorted(rates)


def test_a_dynamic_exit_learns_which_layers_would_have_drafted(model: NativeModel) -> None:
    drafter = DynamicExit((1, 5), longest=3)
    seen: list[Any] = []
    start = drafter.start

    class Kept(DynamicExit):
        def start(self, request: Any) -> Any:
            seen.append(start(request))
            return seen[-1]

    written(model, Kept((1, 5), longest=3), Rejection(), 40)
    counts = seen[0].seen
    assert all(count > 5 for _, count in counts.values())
    # the layer before the last one says more often what the model says than the first
    shares = {layer: right / count for layer, (right, count) in counts.items()}
    assert shares[5] > shares[1]


def test_exits_that_cannot_be_are_refused() -> None:
    model = NativeModel(tiny_llama(5, layers=4))
    for layer in (0, 4, 9):
        with pytest.raises(ValueError, match=f"before one of layers 1..3, got {layer}"):
            written(model, EarlyExit(layer), Match())
        with pytest.raises(ValueError, match="before one of layers"):
            written(model, DynamicExit((1, layer)), Match())
    with pytest.raises(ValueError, match="exits and a length to choose from"):
        written(model, DynamicExit(()), Match())
    for drafter in (EarlyExit(1), DynamicExit((1,))):
        with pytest.raises(ValueError, match="at least 4 layers, this one has 2"):
            written(TransformersModel(tiny_llama(5, layers=2)), drafter, Match())
        with pytest.raises(ValueError, match="at least 4 layers, this one has 0"):
            written(TableModel(torch.eye(8)), drafter, Match())


def test_a_window_reads_all_of_what_it_drafts_from(model: NativeModel) -> None:
    """All draft tokens are kept where nothing is left out; shorter texts are not drafted for."""
    text, stats = written(model, Windowed(0, 16, Widths((1, 1))), Match(), 40)
    assert stats.drafted == stats.accepted > 0
    assert written(model, Windowed(4, 508), Match(), 40)[1].drafted == 0
    assert written(model, Windowed(4, 508), Match(), 40)[0] == text


def test_a_short_context_has_a_window_that_fills_up() -> None:
    target = NativeModel(tiny_llama(5, layers=4, context=96))
    drafter = methods.build("windowed", target).drafter
    assert isinstance(drafter, Windowed)
    assert drafter.window == 48
    assert written(target, drafter, Match(), 60)[1].drafted > 0


def test_an_exit_that_is_named_twice_is_one(model: NativeModel) -> None:
    wanted = written(model, DynamicExit((1, 2)), Match())
    found = written(model, DynamicExit((1, 1, 2)), Match())
    assert found[0] == wanted[0]
    assert found[1].drafted == wanted[1].drafted


@pytest.mark.parametrize(("sinks", "window"), [(4, 15), (-1, 64), (4, 0)])
def test_windows_that_are_too_small_are_refused(sinks: int, window: int) -> None:
    with pytest.raises(ValueError, match="at least 16 places"):
        Windowed(sinks, window)


def test_windows_are_not_longer_than_the_context(model: NativeModel) -> None:
    with pytest.raises(ValueError, match="longer than the model's context"):
        written(model, Windowed(0, 1 << 20), Match())
    with pytest.raises(ValueError, match="'window'"):
        written(TableModel(torch.eye(8)), Windowed(), Match())


# The weights in 4 bits


@pytest.mark.skipif(not has_int8(torch.device("cpu")), reason="no fast 8-bit products")
@pytest.mark.parametrize("products", ["float32", "bfloat16", "int8"])
def test_4_bits_say_nearly_what_the_model_says(products: Any) -> None:
    model = NativeModel(tiny_llama(5, layers=4), products)
    session, tree = model.start(), DraftTree.chain([1, 2, 3])
    session.extend(PROMPT)
    whole = session.forward(tree).logits
    int4 = model.forward([ForwardInput(session, tree, layers=Layers(int4=True))])[0].logits
    assert float((int4 - whole).abs().max()) > 1e-3
    control = whole[:, torch.randperm(whole.shape[1], generator=torch.Generator().manual_seed(0))]
    assert (int4 - whole).norm() < 0.4 * (control - whole).norm()
    with pytest.raises(ValueError, match="only 0 nodes were run through all layers"):
        session.commit([0])
    assert torch.equal(session.forward(tree).logits, whole)  # its weights are as they were
    text, stats = written(model, Int4SelfDraft(Widths((1, 1))), Match(), 32)
    assert text == written(model, Windowed(), Match(), 32)[0]
    assert stats.accepted > 0.2 * stats.drafted > 0


@pytest.mark.skipif(not has_int8(torch.device("cpu")), reason="no fast 8-bit products")
def test_models_of_4_bits_do_not_draft_with_them() -> None:
    in_4_bits = NativeModel(tiny_llama(5, layers=4), "int4")
    for model in (in_4_bits, TransformersModel(tiny_llama(5, layers=4))):
        with pytest.raises(ValueError, match=r"keeps its weights in more than 4 bits.*'int4'"):
            written(model, Int4SelfDraft(), Match())
        with pytest.raises(ValueError, match="'int4'"):
            Int4SelfDraft.build(Resources(model))
