"""SpecDec and LongSpec: laws, caches that change nothing, and what they do not see."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.drafters.draft_vocabulary import HeadDrafter
from draftwood.drafters.drafter import DraftRequest, VerifiedTree
from draftwood.engine import Method, Options, generate
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import BestFirst, Shape, Widths
from draftwood.testing import check_drafter, tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Match, Rejection, Verifier
from draftwood_methods.drafters import Longspec, Specdec
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel
from law_cases import DISTANCE, text_distance
from tiny_heads import tiny_lm, tiny_longspec, tiny_specdec

TOLERANCE, VOCAB = 1e-5, 3
ROADS: list[type[Any]] = [LeanModel, NativeModel, TransformersModel]
PROMPT = [1, 5, 7, 3, 5, 7, 20, 40, 60]
Make = Callable[..., HeadDrafter]


def specdec(target: Model, shape: Shape, tokens: Any = (), **settings: Any) -> HeadDrafter:
    return Specdec(lively(tiny_specdec(target, tokens, **settings)), target, shape)


def longspec(target: Model, shape: Shape, tokens: Any = (), **settings: Any) -> HeadDrafter:
    return Longspec(lively(tiny_longspec(target, tokens, **settings)), target, shape)


def lively(trained: TrainedHead) -> TrainedHead:
    """A random head that holds different things likely after different texts."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        for weight in trained.network.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return trained


MAKERS = pytest.mark.parametrize("make", [specdec, longspec], ids=lambda each: each.__name__)


@pytest.fixture(scope="module")
def target() -> NativeModel:
    return NativeModel(tiny_llama(0, layers=4))


def off(patch: pytest.MonkeyPatch, drafter: HeadDrafter, rule: Verifier, steps: int = 1) -> float:
    sampling = Sampling(0.9)
    method = Method(drafter, rule)
    return text_distance(patch, method, drafter.target, Options(sampling, 12), sampling, steps)


@MAKERS
@pytest.mark.parametrize("road", ROADS)
def test_law_at_temperature(road: Any, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model = road(tiny_llama(3, layers=1, vocab=VOCAB))
    for shape, rule, steps in (
        (Widths((1, 1)), Rejection(), 1),
        (Widths((2,)), Rejection(), 1),
        (Widths((1,)), Rejection(), 2),
        (BestFirst(2, 2, 3), Match(), 1),
    ):
        assert off(monkeypatch, make(model, shape, [0, 2]), rule, steps) < TOLERANCE


class LyingSpecdec(Specdec):
    """Says that its draws came from rows that they did not come from."""

    def start(self, request: DraftRequest) -> Any:
        return lying(super().start(request))


class LyingLongspec(Longspec):
    """The same of LongSpec."""

    def start(self, request: DraftRequest) -> Any:
        return lying(super().start(request))


def lying(session: Any) -> Any:
    propose = session.propose

    def changed(root: int, context: Context) -> DraftTree:
        tree = propose(root, context)
        return tree if tree.probs is None else replace(tree, probs=np.roll(tree.probs, 1, axis=1))

    session.propose = changed
    return session


@pytest.mark.parametrize("kind", [LyingSpecdec, LyingLongspec])
def test_drafters_that_lie_about_their_rows_are_caught(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LeanModel(tiny_llama(3, layers=1, vocab=VOCAB))
    tiny = tiny_specdec if kind is LyingSpecdec else tiny_longspec
    drafter = kind(lively(lively(tiny(model, [0, 1, 2]))), model, Widths((1, 1)))
    assert off(monkeypatch, drafter, Rejection()) > DISTANCE


@MAKERS
@pytest.mark.parametrize("road", ROADS)
def test_texts_are_the_targets_own(road: Any, make: Make) -> None:
    model = road(tiny_llama(0, layers=4))
    check_drafter(make(model, Widths((2, 1, 1))), model)


def sessions(drafter: HeadDrafter, target: Model, chunks: list[list[int]]) -> Any:
    """A draft session that learnt a text in these chunks."""
    request = DraftRequest(Sampling(0.0), Rng(7), target.start())
    draft = drafter.start(request)
    for chunk in chunks:
        request.target.extend(chunk)
        draft.update(VerifiedTree(DraftTree.chain(chunk), range(len(chunk))))
    return draft, request.target


def trees(drafter: HeadDrafter, target: Model, fresh: bool) -> list[DraftTree]:
    """Trees of a few steps, each behind a part of the one before; ``fresh``: of new sessions."""
    draft, session = sessions(drafter, target, [PROMPT[:4], PROMPT[4:]])
    written, found = [*PROMPT], []
    for root, kept in ((9, 2), (33, 0), (4, 1), (61, 3)):
        if fresh:
            draft, session = sessions(drafter, target, [written])
        tree = draft.propose(root, Context(list(written), len(PROMPT), max_draft_len=4))
        found.append(tree)
        deepest = max(range(len(tree)), key=lambda node: len(tree.path_to(node)))
        path = [0, *tree.path_to(deepest)[:kept]]
        session.forward(tree)
        session.commit(path)
        draft.update(VerifiedTree(tree, path))
        written += [tree.token_list[node] for node in path]
    return found


@MAKERS
def test_what_is_kept_from_step_to_step_changes_nothing(make: Make, target: NativeModel) -> None:
    drafter = make(target, BestFirst(4, 3, 9))
    kept, fresh = (trees(drafter, target, each) for each in (False, True))
    for tree, other in zip(kept, fresh, strict=True):
        assert tree.token_list == other.token_list
    assert len({tuple(tree.token_list[1:]) for tree in kept}) > 1


def chain(drafter: HeadDrafter, target: Model, text: list[int]) -> list[int]:
    draft, _ = sessions(drafter, target, [text])
    return draft.propose(9, Context(list(text), len(text), max_draft_len=4)).token_list


def test_longspec_reads_the_cache_behind_its_window(target: NativeModel) -> None:
    """Texts that agree in the window are told apart; the control has no cache to tell them by."""
    texts = [[*range(20, 20 + first), *PROMPT[-6:]] for first in (7, 7)]
    texts[1][:7] = [50, 3, 41, 8, 33, 17, 60]
    drafts = {
        reads: [
            chain(longspec(target, Widths((1,) * 4), window=3, reads_cache=reads), target, text)
            for text in texts
        ]
        for reads in (True, False)
    }
    assert drafts[True][0] != drafts[True][1]
    assert drafts[False][0] == drafts[False][1]


def test_longspecs_own_memory_is_its_window(target: NativeModel) -> None:
    draft, _ = sessions(longspec(target, Widths((1,)), window=4), target, [[*range(30)], [1, 2]])
    draft.propose(9, Context([*range(30), 1, 2], 30, max_draft_len=2))
    assert (draft.text.text.shape[2], draft.text.length) == (3, 32)
    assert draft.text.drafted.shape[2] == 0


def test_specdec_drafts_all_places_in_one_call_and_no_deeper(
    target: NativeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = specdec(target, Widths((1,) * 5), places=3)
    assert isinstance(drafter, Specdec)
    calls, draft = [], drafter.placed.network.draft
    monkeypatch.setattr(
        drafter.placed.network, "draft", lambda *given: calls.append(1) or draft(*given)
    )
    options = Options(Sampling(0.0), 20, seed=3)
    steps = list(generate(target, drafter, Match(), PROMPT, options))
    drafted = [step for step in steps if step.drafted]
    assert len(calls) == len(drafted)
    assert max(step.drafted for step in drafted) == 3


def test_wrong_heads_and_targets_are_refused(target: NativeModel) -> None:
    for kind in (Specdec, Longspec):
        with pytest.raises(ValueError, match="kind 'lm'"):
            kind(tiny_lm(target), target)
        other = NativeModel(tiny_llama(0, layers=4, dim=64))
        with pytest.raises(ValueError, match="take a drafter of this model"):
            kind((tiny_specdec if kind is Specdec else tiny_longspec)(target), other)
    with pytest.raises(ValueError, match="layer 7"):
        longspec(target, Widths((1,)), layer=7)
    with pytest.raises(ValueError, match="cache of floats"):
        longspec(NativeModel(tiny_llama(0, layers=4), cache="int8"), Widths((1,)))
    for wrong in ({"places": 0}, {"layers": -1}):
        with pytest.raises(ValueError, match="at least one place"):
            tiny_specdec(target, **wrong)
    with pytest.raises(ValueError, match="window of at least one"):
        tiny_longspec(target, window=0)
