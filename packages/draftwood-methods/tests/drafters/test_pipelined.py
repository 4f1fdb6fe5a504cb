"""Predictive pipelined decoding: whose layers run when, and that texts stay the target's own."""

import threading
from typing import Any

import pytest
import torch

from draftwood.drafters import Nothing
from draftwood.drafters.drafter import DraftRequest, VerifiedTree
from draftwood.engine import Method, Options, generate
from draftwood.models.model import Layers
from draftwood.models.native import NativeModel
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.stats import Stats
from draftwood.testing import check_drafter, tiny_llama
from draftwood.testing.constraints import Automaton
from draftwood.tree import DraftTree
from draftwood.verifiers import Match
from draftwood_methods.begun import BegunTokens
from draftwood_methods.drafters import Pipelined
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel
from draftwood_torch.tensors import as_tensor
from law_cases import DISTANCE, text_distance
from passes import passes_of

PROMPT, STOP, LAYERS = [1, 2, 3, 4, 5], 3, 6
ROADS: list[type[Any]] = [NativeModel, LeanModel, TransformersModel]


@pytest.fixture(params=ROADS, ids=lambda road: road.__name__)
def model(request: pytest.FixtureRequest) -> Any:
    return request.param(tiny_llama(5, layers=LAYERS))


def written(model: Any, drafter: Any, temperature: float = 0.0, tokens: int = 24) -> list[int]:
    options = Options(Sampling(temperature), max_new_tokens=tokens, seed=3)
    steps = list(generate(model, drafter, Match(), PROMPT, options))
    assert Stats.of(steps).block_efficiency == pytest.approx(1.0)
    return [token for step in steps for token in step.tokens]


def test_a_right_candidate_has_run_its_first_layers(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = passes_of(model, monkeypatch)
    written(model, Pipelined(STOP, model.vocab_size), tokens=5)
    first, rest = Layers(stop=STOP), Layers(start=STOP)
    beside = isinstance(model, NativeModel)
    main = [(layers, rows) for layers, rows, _ in seen if rows == 1]
    guesses = [(layers, rows) for layers, rows, _ in seen if rows == model.vocab_size]
    # the second token to the fourth; the first comes of the prompt, the last guesses nothing
    assert guesses == [(first, model.vocab_size)] * 3
    assert main == [(first, 1), *[(rest, 1)] * 4]
    assert all(aside == (beside and rows > 1) for _, rows, aside in seen)


def test_forced_tokens_do_not_stand_between_candidates_and_their_prefix() -> None:
    forced = Automaton(
        {"a": {1: "c", 0: "d", 4: "c", 10: "c"}, "b": {12: "a"}, "c": {}, "d": {11: "b"}},
        frozenset("dc"),
        16,
        frozenset([STOP]),
    )
    options = Options(Sampling(0.0), max_new_tokens=25, seed=0, constraint=forced)
    for seed in range(10):
        model = NativeModel(tiny_llama(seed, layers=LAYERS, vocab=16))
        plain, own = (
            [
                token
                for step in generate(model, drafter, Match(), [5, 6, 6, 2, 0, 12], options)
                for token in step.tokens
            ]
            for drafter in (Nothing(), Pipelined(STOP, 4))
        )
        assert plain == own


def test_a_wrong_candidate_runs_all_layers(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = passes_of(model, monkeypatch)
    monkeypatch.setattr(BegunTokens, "go_on", lambda self, token: None)
    written(model, Pipelined(STOP, 2), tokens=5)
    own = [layers for layers, rows, _ in seen if rows == 1]
    assert own == [Layers(stop=STOP), Layers(start=STOP)] * 3 + [Layers()]  # of the last token


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("guesses", [1, 3, 64])
@pytest.mark.parametrize("layer", [1, 3, 5])
def test_texts_are_those_of_plain_passes(
    model: Any, temperature: float, guesses: int, layer: int
) -> None:
    plain = written(model, Nothing(), temperature)
    assert written(model, Pipelined(layer, guesses), temperature) == plain


def test_sequences_side_by_side_do_not_disturb_each_other(model: Any) -> None:
    check_drafter(Pipelined(STOP, 4), model)


def law_off(patch: pytest.MonkeyPatch, drafter: Pipelined, model: Any) -> float:
    sampling = Sampling(0.9)
    return text_distance(
        patch, Method(drafter, Match()), model, Options(sampling, 12), sampling, steps=2
    )


@pytest.mark.parametrize("guesses", [1, 2, 3])
@pytest.mark.parametrize("road", ROADS)
def test_law_at_temperature(road: Any, guesses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = road(tiny_llama(3, layers=4, vocab=3))
    assert law_off(monkeypatch, Pipelined(2, guesses), model) < 1e-5


def test_a_token_that_goes_on_with_anothers_state_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A control: every candidate counts as right."""
    model = NativeModel(tiny_llama(3, layers=4, vocab=3))

    def wrongly(self: BegunTokens, token: int) -> Any:
        state = self.found[0][:1]
        self.target.place_states(DraftTree.of([token], [-1]), state, Layers(start=self.layer))
        return state

    monkeypatch.setattr(BegunTokens, "go_on", wrongly)
    assert law_off(monkeypatch, Pipelined(2, 1), model) > DISTANCE


def started(model: Any, drafter: Pipelined) -> tuple[Any, Any]:
    target = model.start()
    target.extend(PROMPT)
    return drafter.start(DraftRequest(Sampling(0.0), Rng(0), target)), target


def stepped(model: Any) -> tuple[Any, Any]:
    """A session behind one step, with candidates for the next token."""
    draft, target = started(model, Pipelined(STOP, 3))
    tree = draft.propose(7, Context([*PROMPT], len(PROMPT), max_draft_len=4))
    output = target.forward(tree)
    target.commit([0])
    draft.update(VerifiedTree(tree, [0], output))
    return draft, target


def test_a_cache_that_was_cleared_has_no_candidates(model: Any) -> None:
    """As where a text is preempted between two steps."""
    draft, target = stepped(model)
    token = draft.placed.tokens[1]
    target.clear()
    target.extend([*PROMPT, 7])
    assert draft.placed.go_on(token) is None
    draft.close()


def test_closing_waits_for_candidates_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    model = NativeModel(tiny_llama(5, layers=LAYERS))
    go_on, over = threading.Event(), []
    compute = model.compute

    def slow(parts: Any, hidden: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            go_on.wait(20)
            over.append(True)
        return compute(parts, hidden)

    monkeypatch.setattr(model, "compute", slow)
    draft, target = started(model, Pipelined(STOP, 2))
    draft.propose(7, Context([*PROMPT], len(PROMPT), max_draft_len=4))
    threading.Timer(0.2, go_on.set).start()
    draft.close()
    assert over == [True]
    target.close()


def test_what_goes_wrong_beside_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    model = NativeModel(tiny_llama(5, layers=LAYERS))
    compute = model.compute

    def broken(parts: Any, hidden: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("beside")
        return compute(parts, hidden)

    monkeypatch.setattr(model, "compute", broken)
    with pytest.raises(RuntimeError, match="beside"):
        written(model, Pipelined(STOP, 2))


def test_impossible_settings_and_models_are_refused(model: Any) -> None:
    for wrong in ({"candidates": 0}, {"threads": 0}):
        with pytest.raises(ValueError, match="candidates and threads"):
            Pipelined(STOP, **wrong)
    with pytest.raises(ValueError, match=r"layers 1\.\.5"):
        written(model, Pipelined(6))
    with pytest.raises(ValueError, match="at least 4 layers"):
        written(NativeModel(tiny_llama(5)), Pipelined(1))


def test_candidates_stop_as_the_same_tokens_do_in_plain_passes(model: Any) -> None:
    draft, _ = stepped(model)
    token = draft.placed.tokens[2]
    state = draft.placed.go_on(token)
    other = model.start()
    other.extend([*PROMPT, 7])
    wanted = other.forward(DraftTree.of([token], [-1]), hidden=(STOP,)).hidden[STOP]
    torch.testing.assert_close(*map(as_tensor, (state, wanted)), atol=1e-5, rtol=1e-4)
    assert draft.placed.go_on(-1) is None
    draft.close()
