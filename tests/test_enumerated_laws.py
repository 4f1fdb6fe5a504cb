"""The law of texts through the whole engine, under every sequence of random choices: to 1e-5, not
up to noise.

Target and draft look at the last three tokens, penalties at the whole text, so that a wrong context
shows.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftwood import methods
from draftwood.drafters import (
    Drafter,
    DraftModel,
    Eagle,
    Hydra,
    JacobiSampled,
    Lm,
    Medusa,
    Mtp,
    StartFromLeft,
)
from draftwood.drafters.ctc_drafter import CtcDrafter
from draftwood.drafters.drafter import DraftRequest, DraftSession
from draftwood.engine import Method, Options
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.sampling import Context, LazyProbs, Sampling
from draftwood.shapes import BestFirst, Independent, Shape, Widths
from draftwood.shapes.base import grow_sound
from draftwood.testing import TableModel
from draftwood.tree import DraftTree
from draftwood.verifiers import Block, Match, Rejection, Traversal, Verifier
from law_cases import (
    DISTANCE,
    PROMPT,
    SMALL,
    Slipping,
    contextual,
    exact_pairs,
    options,
    text_distance,
)
from roads import (
    Cascade,
    DynamicExit,
    EarlyExit,
    LayerSearch,
    LayerSkip,
    LeanModel,
    MergedDrawn,
    NGramSource,
    PerLevel,
    Stand,
    TransformersModel,
    numbers,
    tiny_llama,
    torch,
)
from thinning import thinned
from tiny_heads import TINY, tiny_ctc, tiny_eagle, tiny_lm, tiny_medusa, tiny_mtp

TOLERANCE = 1e-5
PAIRS = [
    pytest.param(shape, rule, id=f"{shape}-{rule.name}")
    for shape, rule in exact_pairs(SMALL)
    if rule != Match()
]
pytestmark = pytest.mark.usefixtures("unchecked")

Written = Callable[..., float]


@pytest.fixture
def off(monkeypatch: pytest.MonkeyPatch) -> Written:
    """Measure the distance of a method's text from the model's own: see ``text_distance``."""

    def measured(
        model: Model, drafter: Drafter, rule: Verifier, sampling: Sampling, steps: int = 1
    ) -> float:
        return text_distance(
            monkeypatch, Method(drafter, rule), model, Options(sampling, 12), sampling, steps
        )

    return measured


VOCAB, SEED = 3, 8


def tables() -> tuple[TableModel, TableModel]:
    """Target and draft; what follows the prompt is certain."""
    target, draft = contextual(VOCAB, seed=SEED)
    target.logits[tuple(PROMPT[-3:])] = numbers([0.0] + [-1e4] * (VOCAB - 1))
    return target, draft


OPTIONS = options(top_k=2, top_p=0.9)
MOST = {
    name: OPTIONS[name] for name in ("penalties + bias", "top-p, top-k + min-p, penalties + bias")
}


@pytest.mark.parametrize(("shape", "rule"), thinned(PAIRS, 5))
def test_law_under_every_subset_of_options(shape: Shape, rule: Verifier, off: Written) -> None:
    target, draft = tables()
    # the most outcomes
    for name, sampling in (MOST if isinstance(shape, Independent) else OPTIONS).items():
        assert off(target, DraftModel(draft, shape), rule, sampling) < TOLERANCE, name


@pytest.mark.parametrize(("shape", "rule"), PAIRS)
def test_law_before_min_tokens(
    shape: Shape, rule: Verifier, off: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = tables()
    sampling = Sampling(0.9, min_tokens=3, end_tokens=frozenset({1}))
    assert off(target, DraftModel(draft, shape), rule, sampling) < TOLERANCE
    method, asked = Method(DraftModel(draft, shape), rule), Options(sampling, 12)
    assert text_distance(monkeypatch, method, target, asked, Sampling(0.9)) > 0.1


@pytest.mark.parametrize("rule", [Rejection(), Traversal(), Block()], ids=lambda rule: rule.name)
def test_law_of_two_steps(rule: Verifier, off: Written) -> None:
    target, draft = tables()
    sampling = OPTIONS["top-k + min-p, penalties + bias"]
    assert off(target, DraftModel(draft, Widths((1, 1))), rule, sampling, steps=2) < TOLERANCE


def breaking(draft: TableModel) -> TableModel:
    """A draft model that says NaN behind every token 1, and plus infinity behind some others."""
    logits = draft.logits + 0
    logits[:, :, 1] = math.nan
    logits[0, 2, 2, 0] = math.inf
    return TableModel(logits)


@pytest.mark.filterwarnings("ignore:.* says NaN or infinity")
@pytest.mark.parametrize(("shape", "rule"), thinned(PAIRS, 5, 1))
def test_law_where_what_is_drawn_breaks_the_draft_model(
    shape: Shape, rule: Verifier, off: Written
) -> None:
    """The prompt ends in token 2, so the root's row holds numbers, and some of those below none."""
    target, draft = tables()
    drafter = DraftModel(breaking(draft), shape)
    assert off(target, drafter, rule, OPTIONS["penalties + bias"]) < TOLERANCE


@pytest.mark.filterwarnings("ignore:.* says NaN or infinity")
def test_law_of_two_steps_of_a_breaking_draft_model(off: Written) -> None:
    target, draft = tables()
    for drafter in (
        DraftModel(breaking(draft), Widths((1, 1))),
        Cascade(breaking(draft), 2, least=0.0),
        PerLevel(DraftModel(breaking(draft), Widths((1,))), NGramSource(order=1), 1),
    ):
        assert off(target, drafter, Rejection(), OPTIONS["temperature alone"], steps=2) < TOLERANCE


@pytest.mark.filterwarnings("ignore:.* says NaN or infinity")
def test_a_tree_that_is_given_up_for_what_was_drawn_is_caught(
    off: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = tables()

    def given_up(shape: Shape, root: int, *given: Any) -> DraftTree:
        tree = grow_sound(shape, root, *given)
        return tree.truncated(0) if tree.is_broken else tree

    monkeypatch.setattr("draftwood.drafters.draft_model.grow_sound", given_up)
    drafter = DraftModel(breaking(draft), Widths((1, 1)))
    assert off(target, drafter, Rejection(), OPTIONS["temperature alone"]) > DISTANCE


@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=lambda rule: rule.name)
def test_law_of_stand(rule: Verifier, off: Written) -> None:
    target, _ = tables()
    for name, sampling in OPTIONS.items():
        assert off(target, Stand(3, order=2, width=2), rule, sampling) < TOLERANCE, name
    for name, sampling in MOST.items():
        assert off(target, Stand(2, order=2, width=1), rule, sampling, steps=2) < TOLERANCE, name


@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=lambda rule: rule.name)
def test_law_of_parts_of_the_target(
    rule: Verifier, off: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = TransformersModel(tiny_llama(3, layers=4, vocab=VOCAB))
    sampling = MOST["penalties + bias"]
    # by what it usually expects, the first tree of so few layers is empty
    monkeypatch.setattr("draftwood_methods.drafters.dynamic_exit.EXPECTED", 0.9)
    drafted, judge = list[int](), type(rule).__call__

    def noted(own: Verifier, tree: DraftTree, *given: Any) -> Any:
        drafted.append(len(tree) - 1)
        return judge(own, tree, *given)

    monkeypatch.setattr(type(rule), "__call__", noted)
    for drafter in (
        LayerSkip(frozenset({1, 2}), Widths((1, 1))),
        LayerSkip(frozenset({2}), Widths((2,))),
        EarlyExit(2, None, Widths((1, 1))),
        DynamicExit((1, 3), longest=2),
        LayerSearch(halves=False, shape=Widths((2,))),
    ):
        drafted.clear()
        assert off(model, drafter, rule, sampling) < TOLERANCE
        assert max(drafted) > 0, drafter.name


def test_law_of_guesses_drawn_from_the_last_pass(off: Written) -> None:
    """More of them is in the drafter's own tests."""
    target, _ = tables()
    for name, sampling in MOST.items():
        assert off(target, JacobiSampled(2), Rejection(), sampling) < TOLERANCE, name
    drafter = JacobiSampled(2, StartFromLeft())
    assert off(target, drafter, Rejection(), MOST["penalties + bias"], steps=2) < TOLERANCE


def test_law_of_compositions(off: Written) -> None:
    target, draft = tables()
    one, pair = (DraftModel(draft, Widths(widths)) for widths in ((1,), (2,)))
    for drafter, rule in (
        (Cascade(draft, 2, least=0.0), Rejection()),
        (Cascade(draft, 2, width=2, least=0.0), Traversal()),
        (PerLevel(one, NGramSource(order=1), 1), Rejection()),
        (MergedDrawn((pair, Stand(1, order=1, width=1))), Rejection()),
    ):
        sampling = MOST["penalties + bias"]
        assert off(target, drafter, rule, sampling) < TOLERANCE, drafter.name


def test_law_of_two_steps_of_a_cascade(off: Written) -> None:
    """In the second one with what its tables and its model's cache keep of the first."""
    target, draft = tables()
    sampling = OPTIONS["top-k + min-p, penalties + bias"]
    cascade = Cascade(draft, 2, least=0.0)
    assert off(target, cascade, Rejection(), sampling, steps=2) < TOLERANCE


def test_a_law_that_is_wrong_by_as_much_as_must_be_caught_is_measured_as_that(off: Written) -> None:
    target, draft = tables()
    sampling = Sampling(1.0)
    found = off(target, DraftModel(draft, Widths((1, 1))), Slipping(Rejection()), sampling)
    assert found == pytest.approx(DISTANCE, rel=1e-3)


def test_penalties_that_miss_the_tokens_of_the_tree_are_caught(
    off: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = tables()
    drafter, sampling = DraftModel(draft, Widths((1, 1))), OPTIONS["penalties + bias"]

    def at_the_root(probs: LazyProbs, node: int) -> np.ndarray:
        before = probs.before.extended(probs.tree.token_list[:1])
        return probs.sampler.probs(probs.logits[node : node + 1], [before])[0]

    assert off(target, drafter, Rejection(), sampling) < TOLERANCE
    monkeypatch.setattr(LazyProbs, "__getitem__", at_the_root)
    assert off(target, drafter, Rejection(), sampling) > DISTANCE


@pytest.mark.parametrize("tail", [1, 2])
def test_a_target_that_reads_too_short_a_context_in_trees_is_caught(
    tail: int, off: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = tables()
    drafter = DraftModel(draft, Widths((2, 1)))
    whole = TableModel.after

    def short(model: TableModel, tails: list[tuple[int, ...]]) -> Any:
        lost = len(tails) > 1 and model is target  # several at once: a tree
        return whole(model, [(0,) * (3 - tail) + each[-tail:] for each in tails] if lost else tails)

    monkeypatch.setattr(TableModel, "after", short)
    assert off(target, drafter, Rejection(), Sampling(1.0)) > DISTANCE


class LyingRows(Drafter):
    """Calls the rows that it drew from other rows."""

    def start(self, request: DraftRequest) -> DraftSession:
        draft = super().start(request)
        propose = draft.propose

        def lie(root: int, context: Context) -> DraftTree:
            tree = propose(root, context)
            probs = None if tree.probs is None else np.roll(tree.probs, 1, -1)
            return replace(tree, probs=probs)

        draft.propose = lie  # type: ignore[method-assign]
        return draft


class Lying(LyingRows, Eagle): ...


class LyingLm(LyingRows, Lm): ...


ROADS = pytest.mark.parametrize("road", [LeanModel, NativeModel], ids=lambda road: road.__name__)


@ROADS
@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=lambda rule: rule.name)
def test_law_of_a_trained_head(
    rule: Verifier, road: type[LeanModel | NativeModel], off: Written
) -> None:
    """Also where it does not know every token, and in a step after a step."""
    model = road(tiny_llama(3, layers=1, vocab=VOCAB))
    known, part = (tiny_eagle(model, tokens) for tokens in ([0, 1, 2], [0, 2]))
    for drafter, sampling, steps in (
        (Eagle(known, model, Widths((1, 1))), Sampling(0.9), 1),
        (Eagle(part, model, Widths((2,))), MOST["penalties + bias"], 1),
        (Eagle(part, model, Widths((1,))), Sampling(0.9), 2),
    ):
        assert off(model, drafter, rule, sampling, steps) < TOLERANCE


@ROADS
def test_law_of_the_likeliest_nodes_of_a_trained_head(
    road: type[LeanModel | NativeModel], off: Written
) -> None:
    model = road(tiny_llama(3, layers=1, vocab=VOCAB))
    drafter = Eagle(tiny_eagle(model, [0, 2]), model, BestFirst(2, 2, 3))
    assert off(model, drafter, Match(), Sampling(0.9)) < TOLERANCE


@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=lambda rule: rule.name)
def test_law_of_a_models_own_layer(rule: Verifier, off: Written) -> None:
    model = NativeModel(tiny_llama(3, layers=1, vocab=VOCAB))
    layer = tiny_mtp(model)
    for shape, sampling, steps in (
        (Widths((1, 1)), Sampling(0.9), 1),
        (Widths((2,)), MOST["penalties + bias"], 1),
        (Widths((1,)), Sampling(0.9), 2),
    ):
        assert off(model, Mtp(layer, model, shape), rule, sampling, steps) < TOLERANCE
    likeliest = Mtp(layer, model, BestFirst(2, 2, 3))
    assert off(model, likeliest, Match(), Sampling(0.9)) < TOLERANCE


class LyingMtp(LyingRows, Mtp): ...


def test_a_models_own_layer_that_lies_about_its_rows_is_caught(off: Written) -> None:
    model = NativeModel(tiny_llama(3, layers=1, vocab=VOCAB))
    drafter = LyingMtp(tiny_mtp(model), model, Widths((1, 1)))
    assert off(model, drafter, Rejection(), Sampling(0.9)) > DISTANCE


@pytest.mark.parametrize("path", [LeanModel, NativeModel])
@pytest.mark.parametrize("kind", [Medusa, Hydra], ids=lambda kind: kind.name)
def test_law_of_heads_side_by_side(
    kind: type[Medusa], path: type[LeanModel | NativeModel], off: Written
) -> None:
    model = path(tiny_llama(3, layers=1, vocab=VOCAB))
    heads = tiny_medusa(model, [0, 2], sees_drafted=kind.sees_drafted)
    for shape, sampling, steps in (
        (Widths((1, 1)), Sampling(0.9), 1),
        (Widths((2,)), MOST["penalties + bias"], 1),
        (Widths((1,)), Sampling(0.9), 2),
    ):
        assert off(model, kind(heads, model, shape), Rejection(), sampling, steps) < TOLERANCE


class LyingMedusa(LyingRows, Medusa): ...


STANDING_IN: list[tuple[str, Shape]] = [
    ("rsd-c", Widths((2,))),
    ("specinfer", Widths((2,), "independent")),
    ("spectr", Independent(2, 1)),
]


@pytest.mark.parametrize("kind", ["eagle", "medusa", "hydra", "ctc", "lm"])
@pytest.mark.parametrize(("name", "shape"), STANDING_IN, ids=lambda each: str(each))
def test_law_of_a_head_that_stands_in_for_a_draft_model(
    name: str, shape: Shape, kind: str, off: Written
) -> None:
    model = LeanModel(tiny_llama(3, layers=1, vocab=VOCAB))
    method = methods.build(name, model, shape=shape, head=TINY[kind](model))
    assert method.drafter.name == kind
    assert off(model, method.drafter, method.verifier, Sampling(0.9)) < TOLERANCE


def test_heads_side_by_side_that_lie_about_their_rows_are_caught(off: Written) -> None:
    model = LeanModel(tiny_llama(3, layers=1, vocab=VOCAB))
    heads = tiny_medusa(model, [0, 1, 2])
    with torch.no_grad():
        for weight in heads.network.parameters():
            weight.mul_(8.0)  # rows that are flat would look alike
    drafter = LyingMedusa(heads, model, Widths((1, 1)))
    assert off(model, drafter, Rejection(), Sampling(0.9)) > DISTANCE


@pytest.mark.parametrize("path", [LeanModel, NativeModel])
def test_law_of_frames(path: type[LeanModel | NativeModel], off: Written) -> None:
    model = path(tiny_llama(3, layers=1, vocab=VOCAB))
    head = tiny_ctc(model, [0, 2])
    cases: list[tuple[Shape, Any, int]] = [
        (Widths((2, 1)), "prefix", 1),
        (Widths((1, 1)), "raw", 1),
        (Widths((1,)), "prefix", 2),
    ]
    for shape, search, steps in cases:
        drafter = CtcDrafter(head, model, shape, search)
        assert off(model, drafter, Rejection(), Sampling(0.9), steps) < TOLERANCE
    likeliest = CtcDrafter(head, model, nodes=2)
    assert off(model, likeliest, Match(), Sampling(0.9)) < TOLERANCE


def sure(trained: TrainedHead) -> TrainedHead:
    """Heads whose rows are far from even."""
    for name, weight in trained.network.named_parameters():
        weight.mul_(8.0 if "blocks" in name else 1.0)
    return trained


@pytest.mark.parametrize("kind", ["medusa", "hydra", "ctc"])
def test_rows_of_the_library_that_are_rolled_are_caught(
    kind: str, off: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree states other rows than those that the library drew from."""
    model = NativeModel(tiny_llama(3, layers=1, vocab=VOCAB))
    shape, every = Widths((1, 1)), [0, 1, 2]
    drafter: Drafter = {
        "medusa": lambda: Medusa(sure(tiny_medusa(model, every)), model, shape),
        "hydra": lambda: Hydra(sure(tiny_medusa(model, every, sees_drafted=True)), model, shape),
        "ctc": lambda: CtcDrafter(tiny_ctc(model, every), model, shape),
    }[kind]()
    start = type(drafter).start

    def lying(drafter: Any, request: DraftRequest) -> DraftSession:
        session = start(drafter, request)
        propose = session.propose

        def lie(root: int, context: Context) -> DraftTree:
            tree = propose(root, context)
            return tree if tree.probs is None else replace(tree, probs=np.roll(tree.probs, 1, -1))

        session.propose = lie  # type: ignore[method-assign]
        return session

    monkeypatch.setattr(type(drafter), "start", lying)
    assert off(model, drafter, Rejection(), Sampling(0.9)) > DISTANCE


@ROADS
def test_a_trained_head_that_lies_about_its_rows_is_caught(
    road: type[LeanModel | NativeModel], off: Written
) -> None:
    model = road(tiny_llama(3, layers=1, vocab=VOCAB))
    drafter = Lying(tiny_eagle(model, [0, 1, 2]), model, Widths((1, 1)))
    assert off(model, drafter, Rejection(), Sampling(0.9)) > DISTANCE


@ROADS
def test_law_of_a_draft_lm(road: type[LeanModel | NativeModel], off: Written) -> None:
    model = road(tiny_llama(3, layers=1, vocab=VOCAB))
    drawn = Lm(tiny_lm(model, [0, 2]), model, Widths((2, 1)))
    assert off(model, drawn, Rejection(), Sampling(0.9)) < TOLERANCE
    likeliest = Lm(tiny_lm(model, [0, 2]), model, BestFirst(2, 2, 3))
    assert off(model, likeliest, Match(), Sampling(0.9)) < TOLERANCE


@ROADS
def test_a_draft_lm_that_lies_about_its_rows_is_caught(
    road: type[LeanModel | NativeModel], off: Written
) -> None:
    model = road(tiny_llama(3, layers=1, vocab=VOCAB))
    drafter = LyingLm(tiny_lm(model, [0, 1, 2]), model, Widths((1, 1)))
    assert off(model, drafter, Rejection(), Sampling(0.9)) > DISTANCE
