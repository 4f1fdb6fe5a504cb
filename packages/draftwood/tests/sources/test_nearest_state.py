"""Places where the model was in a like state: what is found, and the same in C++ and in Python."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.drafters import DraftRequest, MultiSource, Nothing, VerifiedTree
from draftwood.engine import Options, generate
from draftwood.models.model import ModelOutput
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.sources import Datastore, NearestState, Suffix
from draftwood.sources.acceptance import Estimator
from draftwood.sources.merger import Merger
from draftwood.sources.nearest_state import STRENGTHS
from draftwood.sources.source import TargetUpdate
from draftwood.sources.token_index import TokenIndex
from draftwood.stats import Stats
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Match
from merged_trees import BUDGET, VOCAB, model_of
from reference.merger import PythonMerger
from reference.sessions import start

LAYER = 3


def state(meaning: int, width: int = 64) -> torch.Tensor:
    """One of some states far from each other."""
    generator = torch.Generator().manual_seed(meaning)
    return torch.randn(width, generator=generator)


def session_of(text: list[int], meanings: list[int]) -> Any:
    model = model_of(0)
    session = start(NearestState(LAYER, 64), DraftRequest(Sampling(), Rng(0), model.start()))
    hidden = {LAYER: torch.stack([state(meaning) for meaning in meanings])}
    tree = DraftTree.chain(text)
    output = ModelOutput(model.logits[text], hidden)
    session.learn(TargetUpdate(VerifiedTree(tree, range(len(text)), output), Sampling(1.0)))
    return session


def test_the_place_of_the_like_state_counts_not_the_longest_match() -> None:
    # 5 is drawn in state 2; it was before, once followed by 10 11, and in state 3 by 20
    text = [1, 5, 10, 11, 3, 4, 5, 20, 2, 3, 4]
    meanings = [2, 6, 6, 6, 7, 3, 6, 6, 7, 7, 2]
    session = session_of(text, meanings)
    places = session.begin(5)
    [(kind, likely)] = session.candidates(places)
    assert likely[10] > 2 * likely[20]
    assert kind.strength == STRENGTHS
    deeper = session.advance(places, 10)
    assert list(session.candidates(deeper)[0][1]) == [11]
    assert session.candidates(session.advance(places, 30)) == []
    assert session.candidates(session.begin(30)) == []
    # the longest match is the other one
    longest = start(Suffix(), DraftRequest(Sampling(), Rng(0), model_of(0).start()))
    tree = DraftTree.chain(text)
    longest.learn(TargetUpdate(VerifiedTree(tree, range(len(text))), Sampling(1.0)))
    assert list(longest.candidates(longest.begin(5))[0][1]) == [20]


def test_what_was_not_computed_has_no_state() -> None:
    session = session_of([1, 5, 10], [2, 6, 2])
    tree = DraftTree.chain([7, 1])
    session.learn(TargetUpdate(VerifiedTree(tree, range(2)), Sampling(1.0)))
    assert session.candidates(session.begin(5)) == []


def grown(way: Any, nearest: NearestState, temperature: float, seed: int) -> list[Any]:
    """Trees drafted over a text with rejected drafts, some of it without states."""
    model, chance = model_of(seed), random.Random(seed)
    request = DraftRequest(Sampling(temperature), Rng(seed), model.start())
    estimator = Estimator.for_sampling() if temperature else Estimator()
    merged, found = way((Suffix(shortest=2), nearest), estimator, request), []
    assert merged.hidden == (nearest.layer,)

    def learn(tree: DraftTree, path: list[int], quiet: bool = False) -> None:
        states = torch.stack(
            [state(token % 7, nearest.width) for token in tree.token_list]
        ) + 0.7 * torch.randn(len(tree), nearest.width, generator=generator)
        output = None if quiet else ModelOutput(model.logits[tree.tokens], {nearest.layer: states})
        merged.learn(VerifiedTree(tree, path, output), quiet=quiet)

    generator = torch.Generator().manual_seed(seed)
    prompt = [chance.randrange(VOCAB) for _ in range(20)] * 2
    learn(DraftTree.chain(prompt), list(range(40)))
    for step in range(60):
        root = chance.choice(prompt)
        if step % 11 == 10:
            learn(DraftTree.chain([root]), [0], quiet=True)
            continue
        drafted = merged.grow(root, BUDGET)
        found.append((drafted, [set(names) for names in merged.proposers(len(drafted.tokens))]))
        tree, path = DraftTree.of(drafted.tokens, drafted.parents), [0]
        while tree.children[path[-1]] and chance.random() < 0.7:
            path.append(chance.choice(tree.children[path[-1]]))
        learn(tree, path)
        request.rng.draw(np.ones(VOCAB))
    return found


@pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("width", [64, 576])
def test_the_same_trees_in_both_languages(width: int, temperature: float) -> None:
    nearest, proposed = NearestState(LAYER, width), 0
    for seed in range(2):
        python, native = (grown(way, nearest, temperature, seed) for way in (PythonMerger, Merger))
        for (ours, names), (theirs, their_names) in zip(python, native, strict=True):
            assert (ours.tokens, ours.parents) == (theirs.tokens, theirs.parents)
            assert ours.chances == pytest.approx(theirs.chances, rel=1e-9)
            assert names == their_names
            proposed += sum("nearest-state" in each for each in names)
    assert proposed > 50


@pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_those_of_plain_decoding(temperature: float) -> None:
    target = NativeModel(tiny_llama(0, layers=4))
    texts = [[place * 3 % 64 for place in range(50)], [5, 6, 7] * 9]
    sources = (
        NearestState(2, target.hidden_size),
        Datastore(TokenIndex.of(texts, target.vocab_size), shortest=1),
    )
    drafting = MultiSource(sources, BUDGET)
    options = Options(Sampling(temperature), 60, seed=3)
    plain, steps = (
        list(generate(target, drafter, Match(), [5, 6, 7] * 6, options))
        for drafter in (Nothing(), drafting)
    )
    told = [[token for step in each for token in step.tokens] for each in (plain, steps)]
    assert told[0] == told[1]
    assert {"nearest-state", "datastore"} <= Stats.of(steps).sources.keys()


@pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
@pytest.mark.parametrize("way", [PythonMerger, Merger])
def test_states_of_another_width_are_refused(way: Any) -> None:
    target = NativeModel(tiny_llama(0, layers=4))
    request = DraftRequest(Sampling(), Rng(0), target.start())
    with pytest.raises(ValueError, match=r"states of 6400 numbers, and the model's have \d+; make"):
        way((NearestState(2, 6400),), Estimator(), request)


@pytest.mark.parametrize("settings", [{"layer": -1, "width": 8}, {"layer": 0, "width": 0}])
def test_impossible_settings(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        NearestState(**settings)
