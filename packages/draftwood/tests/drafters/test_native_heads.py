"""Trained heads that the library runs draft what PyTorch's forms draft, in whole steps too."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from draftwood import methods
from draftwood.arrays import as_array
from draftwood.drafters import Eagle, Lm
from draftwood.drafters.draft_vocabulary import HeadDrafter
from draftwood.drafters.drafter import DraftRequest, VerifiedTree
from draftwood.engine import Options, Sequence, generate
from draftwood.engine.parallel_sampling import ParallelSampling
from draftwood.engine.scheduler import run_all
from draftwood.heads.eagle import NEWEST
from draftwood.heads.native_text import NativeText
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import BestFirst, StochasticBeam, Widths
from draftwood.shapes.shape import Shape
from draftwood.sources.source import TargetUpdate
from draftwood.sources.trained_head import TrainedHeadSource
from draftwood.testing import tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Match, Rejection
from draftwood_torch.lean.model import LeanModel
from reference.trained_head import TrainedHeadSession
from tiny_heads import tiny_eagle, tiny_lm

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")

PROMPT = [1, 5, 7, 3, 5, 7, 20, 40, 60]
HEADS: dict[str, tuple[type[Eagle] | type[Lm], Any, dict[str, Any]]] = {
    "eagle": (Eagle, tiny_eagle, {}),
    "eagle, two layers": (Eagle, tiny_eagle, {"layers": 2, "window": 5}),
    "eagle, plain": (
        Eagle,
        tiny_eagle,
        {"feeds_normed": False, "norms_features": False, "norm_before_residual": True},
    ),
    "eagle, own head": (Eagle, tiny_eagle, {"own_head": 32}),
    "lm": (Lm, tiny_lm, {}),
    "lm, two layers": (Lm, tiny_lm, {"layers": 2, "window": 5}),
}
SHAPES = [BestFirst(3, 3, 4), BestFirst(2, 4, 9), Widths((2, 2, 1)), StochasticBeam(3, 2)]


@pytest.fixture(scope="module")
def target() -> NativeModel:
    return NativeModel(tiny_llama(0, layers=4))


def lively(trained: TrainedHead) -> TrainedHead:
    """A random head that holds different things likely after different texts."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        for weight in trained.network.parameters():
            if weight.ndim == 2:
                weight.add_(0.15 * torch.randn_like(weight))
    return trained


def drafter_of(name: str, target: Model, shape: Shape, in_pytorch: bool = False) -> HeadDrafter:
    kind, trained, settings = HEADS[name]
    drafter = kind(lively(trained(target, **settings)), target, shape)
    assert drafter.native is not None
    if in_pytorch:
        object.__setattr__(drafter, "native", None)
    return drafter


def told(drafter: HeadDrafter, target: Model, tokens: list[int], temperature: float = 0.0) -> Any:
    """A session that knows some tokens, and the target's."""
    request = DraftRequest(Sampling(temperature), Rng(7), target.start())
    draft = drafter.start(request)
    for chunk in (tokens[:4], tokens[4:]):
        output = request.target.extend(chunk, hidden=draft.reads.hidden)
        draft.update(VerifiedTree(DraftTree.chain(chunk), range(len(chunk)), output))
    return draft, request.target


def trees(drafter: HeadDrafter, target: Model, temperature: float) -> Iterator[DraftTree]:
    """Trees of a few steps, each of which keeps a part of the tree before."""
    draft, session = told(drafter, target, PROMPT, temperature)
    written = [*PROMPT]
    for root, kept in ((9, 2), (33, 0), (4, 1), (61, 3)):
        tree = draft.propose(root, Context(list(written), len(PROMPT), max_draft_len=4))
        yield tree
        deepest = max(range(len(tree)), key=lambda node: len(tree.path_to(node)))
        path = [0, *tree.path_to(deepest)[:kept]]
        output = session.forward(tree, hidden=draft.reads.hidden)
        session.commit(path)
        draft.update(VerifiedTree(tree, path, output))
        written += [tree.token_list[node] for node in path]


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_trees_are_those_of_pytorch(
    target: NativeModel, name: str, shape: Shape, temperature: float
) -> None:
    native = list(trees(drafter_of(name, target, shape), target, temperature))
    wanted = list(trees(drafter_of(name, target, shape, in_pytorch=True), target, temperature))
    for found, other in zip(native, wanted, strict=True):
        assert (found.token_list, found.parent_list) == (other.token_list, other.parent_list)
        if other.probs is not None:
            assert found.probs is not None
            assert np.allclose(found.probs, other.probs, atol=1e-4, rtol=1e-3)
    assert len({tuple(tree.token_list[1:]) for tree in native}) > 1


@pytest.mark.parametrize("name", HEADS)
def test_logits_are_those_of_pytorch(target: NativeModel, name: str) -> None:
    """Along a tree, and again after it was dropped."""
    rows = []
    for in_pytorch in (False, True):
        drafter = drafter_of(name, target, Widths((1,)), in_pytorch)
        text = told(drafter, target, PROMPT)[0].text
        assert isinstance(text, NativeText) != in_pytorch
        tree = DraftTree.of([9, 4, 6, 8, 10, 4], [-1, 0, 0, 1, 1, 3])
        own = [np.array(as_array(text.level(tree.keep([0]), 0)))]
        for last, first in ((3, 1), (5, 3), (6, 5)):
            own.append(np.array(as_array(text.level(tree.keep(range(last)), first))))
        text.drop()
        own.append(np.array(as_array(text.level(tree.keep([0, 2]), 1))))
        rows.append(torch.from_numpy(np.concatenate(own)))
    torch.testing.assert_close(rows[0], rows[1], atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(rows[0][2], rows[0][-1], atol=0.0, rtol=0.0)
    assert rows[0].std() > 0.1


def steps_of(
    target: Model, drafter: HeadDrafter, temperature: float, prompt: list[int] = PROMPT
) -> list[Any]:
    rule = Match() if drafter.shape.draw == "chosen" else Rejection()
    options = Options(Sampling(temperature), 32, seed=3)
    return list(generate(target, drafter, rule, prompt, options))


def plain_text(target: Model, temperature: float) -> list[int]:
    plain = methods.build("plain", target)
    options = Options(Sampling(temperature), 32, seed=3)
    steps = generate(target, plain.drafter, plain.verifier, PROMPT, options)
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    "shape", [BestFirst(3, 3, 4), BestFirst(4, 2, 6), BestFirst(5, 3, 6, floor=0.1)], ids=str
)
def test_whole_steps_draft_the_same_trees(
    target: NativeModel, name: str, temperature: float, shape: Shape
) -> None:
    native = steps_of(target, drafter_of(name, target, shape), temperature)
    python = steps_of(target, drafter_of(name, target, shape, in_pytorch=True), temperature)
    assert [step.tokens for step in native] == [step.tokens for step in python]
    for found, other in zip(native[1:], python[1:], strict=True):
        assert found.tree.token_list == other.tree.token_list
        assert found.tree.parent_list == other.tree.parent_list
    assert [token for step in native for token in step.tokens] == plain_text(target, temperature)
    assert sum(step.drafted for step in native) > 40


def test_whole_steps_behind_a_long_prompt(target: NativeModel) -> None:
    shape, plain = BestFirst(3, 3, 4), methods.build("plain", target)
    native = steps_of(target, drafter_of("eagle", target, shape), 0.0, LONG)
    python = steps_of(target, drafter_of("eagle", target, shape, in_pytorch=True), 0.0, LONG)
    assert [step.tree.token_list for step in native[1:]] == [
        step.tree.token_list for step in python[1:]
    ]
    alone = generate(target, plain.drafter, plain.verifier, LONG, Options(Sampling(0.0), 32))
    wanted = [token for step in alone for token in step.tokens]
    assert [token for step in native for token in step.tokens] == wanted


@pytest.mark.parametrize("name", ["eagle", "lm"])
@pytest.mark.parametrize("products", ["int8", "int4", "bfloat16"])
def test_texts_are_the_models_own_in_every_type(name: str, products: Any) -> None:
    target = NativeModel(tiny_llama(0, layers=4), products)
    for temperature in (0.0, 0.8):
        steps = steps_of(target, drafter_of(name, target, BestFirst(3, 3, 4)), temperature)
        text = [token for step in steps for token in step.tokens]
        assert text == plain_text(target, temperature)
    drawn = steps_of(target, drafter_of(name, target, Widths((2, 1))), 0.0)
    assert [token for step in drawn for token in step.tokens] == plain_text(target, 0.0)


@pytest.mark.parametrize("name", ["eagle", "lm"])
@pytest.mark.parametrize("shape", [BestFirst(3, 3, 4), Widths((2, 1))], ids=str)
def test_answers_share_the_rows_of_their_prompt(
    target: NativeModel, name: str, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter, copied = drafter_of(name, target, shape), list[int]()
    copy = NativeText.follow

    def follow(text: NativeText, first: NativeText) -> None:
        before = text.session.length
        copy(text, first)
        copied.append(text.session.length - before)

    monkeypatch.setattr(NativeText, "follow", follow)
    rule = Match() if shape.draw == "chosen" else Rejection()

    def write(seeds: list[int]) -> list[list[int]]:
        options = [Options(Sampling(1.0), 12, seed=seed) for seed in seeds]
        sequences = [Sequence(target, drafter, rule, PROMPT, each) for each in options]
        texts: list[list[int]] = [[] for _ in seeds]
        for _, step in run_all([ParallelSampling(sequences)]):
            for answer, each in step:
                texts[answer] += each.tokens
        return texts

    assert write([1, 2, 3]) == [write([seed])[0] for seed in (1, 2, 3)]
    assert copied == [len(PROMPT) - (name == "eagle")] * 2


@pytest.mark.parametrize("least", [0, 9])
def test_steps_in_turn_go_over_to_whole_steps(target: NativeModel, least: int) -> None:
    """End tokens are banned by Python, for as long as they are."""
    drafter = drafter_of("eagle", target, BestFirst(3, 3, 4))
    options = Options(Sampling(0.0, min_tokens=least, end_tokens=frozenset({63})), 32, seed=3)
    steps = list(generate(target, drafter, Match(), PROMPT, options))
    assert [token for step in steps for token in step.tokens] == plain_text(target, 0.0)
    assert all(step.drafted for step in steps[1:-4])


@pytest.mark.parametrize("products", ["float32", "int8"])
@pytest.mark.parametrize("shape", [BestFirst(3, 3, 4), Widths((2, 1))], ids=str)
def test_a_head_that_overflows_ends_drafting(products: Any, shape: Shape) -> None:
    target = NativeModel(tiny_llama(0, layers=4), products)
    trained = tiny_eagle(target)
    with torch.no_grad():
        trained.network.get_parameter("layers.0.mlp.down_proj.weight").fill_(3e38)
    drafter = Eagle(trained, target, shape)
    assert drafter.native is not None
    with pytest.warns(UserWarning, match="eagle says NaN or infinity"):
        steps = steps_of(target, drafter, 0.0)
    assert [token for step in steps for token in step.tokens] == plain_text(target, 0.0)
    assert not any(step.drafted for step in steps[2:])


@pytest.mark.parametrize("shape", [BestFirst(3, 3, 4), Widths((2, 1))], ids=str)
def test_states_that_are_no_numbers_end_drafting(
    target: NativeModel, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = drafter_of("eagle", target, shape)
    take = NativeText.take

    def broken(text: NativeText, tokens: Any, hidden: Any, path: Any) -> None:
        take(text, tokens, {layer: each * torch.nan for layer, each in hidden.items()}, path)

    monkeypatch.setattr(NativeText, "take", broken)
    with pytest.warns(UserWarning, match="eagle says NaN or infinity"):
        steps = steps_of(target, drafter, 0.0)
    assert [token for step in steps for token in step.tokens] == plain_text(target, 0.0)
    assert not any(step.drafted for step in steps[2:])


LONG = [(7 * place + place // 5) % 60 for place in range(NEWEST + 40)]


@pytest.mark.parametrize("in_pytorch", [False, True])
def test_a_head_takes_in_the_newest_rows_of_a_prompt(target: NativeModel, in_pytorch: bool) -> None:
    drafter = drafter_of("eagle", target, Widths((3, 1)), in_pytorch)
    draft, session = told(drafter, target, LONG)
    tree = draft.propose(9, Context(LONG, len(LONG), 4))
    text = draft.text
    rows = text.session.length if isinstance(text, NativeText) else text.rows.text
    assert rows == NEWEST
    output = target.start().extend(LONG, hidden=draft.reads.hidden)
    drafts = []
    for first in (len(LONG) - NEWEST, len(LONG) - 2):
        short = drafter.start(DraftRequest(Sampling(0.0), Rng(7), session))
        path = range(first, len(LONG))
        short.update(VerifiedTree(DraftTree.chain(LONG), path, output))
        drafts.append(short.propose(9, Context(LONG, len(LONG), 4)).token_list)
    assert tree.token_list == drafts[0] != drafts[1]


@pytest.mark.parametrize("rows", [9, 32])
def test_eagle_drafts_what_the_source_of_auto_holds_likely(rows: int) -> None:
    prompt = LONG[:rows]
    target = NativeModel(tiny_llama(0, layers=4), "int8")
    drafter = drafter_of("eagle", target, BestFirst(1, 4, 4))
    draft, session = told(drafter, target, prompt)
    own = draft.propose(9, Context(prompt, len(prompt), 4)).token_list[1:]
    source = TrainedHeadSource.of(drafter.trained, target)
    asked = TrainedHeadSession(source, DraftRequest(Sampling(0.0), Rng(7), session))
    output = target.start().extend(prompt, hidden=source.layers)
    accepted = VerifiedTree(DraftTree.chain(prompt), range(len(prompt)), output)
    asked.learn(TargetUpdate(accepted, Sampling(0.0)))
    ((_, likely),) = asked.candidates(asked.begin(9))
    assert own == list(likely)[:4]


def test_one_packed_head_serves_auto_and_eagle() -> None:
    target = NativeModel(tiny_llama(0, layers=4), "int8")
    trained = tiny_eagle(target)
    first, second = Eagle(trained, target), Eagle(trained, target, Widths((1,)))
    assert first.native is second.native is TrainedHeadSource.of(trained, target).head
    other = NativeModel(tiny_llama(0, layers=4), "int8")
    assert Eagle(trained, other).native is not first.native
    changed = replace(
        trained, weights={**trained.weights, "fc.weight": trained.weights["fc.weight"] * 2}
    )
    assert Eagle(changed, target).native is not first.native


def test_pytorch_runs_what_the_library_does_not(target: NativeModel) -> None:
    sampling = tiny_eagle(target, feature_sampling=True, feeds_normed=False)
    assert Eagle(sampling, target).native is None
    damaged = tiny_eagle(target)
    with torch.no_grad():
        damaged.network.get_parameter("fc.weight")[0, 0] = torch.nan
    assert Eagle(damaged, target).native is None
    lean = LeanModel(tiny_llama(0, layers=4))
    assert Eagle(tiny_eagle(lean), lean).native is None
    assert Lm(tiny_lm(lean), lean).native is None


def test_branches_of_a_draft_lm_go_their_own_ways(target: NativeModel) -> None:
    drafter = drafter_of("lm", target, Widths((2, 1)))
    draft = told(drafter, target, PROMPT, 0.8)[0]
    branch = draft.branch(Rng(7), lambda: None)
    first, second = (each.propose(9, Context(PROMPT, 9, 4)) for each in (draft, branch))
    assert first.token_list == second.token_list
    other = draft.branch(Rng(7), lambda: None).propose(11, Context(PROMPT, 9, 4))
    assert other.token_list[0] == 11
    logits = draft.logits_after(first)
    assert logits.shape == (len(first), 64)
    in_pytorch = drafter_of("lm", target, Widths((2, 1)), in_pytorch=True)
    slow = told(in_pytorch, target, PROMPT, 0.8)[0]
    wanted = slow.propose(9, Context(PROMPT, 9, 4))
    assert wanted.token_list == first.token_list
    torch.testing.assert_close(logits, slow.logits_after(wanted), atol=1e-3, rtol=1e-3)


def test_rows_of_another_head_are_not_copied(target: NativeModel) -> None:
    one, two = (drafter_of("lm", target, Widths((1,))) for _ in range(2))
    first, second = (told(each, target, PROMPT)[0].text.session for each in (one, two))
    with pytest.raises(ValueError, match="a text of the same head"):
        second.copy(first, 0)
    with pytest.raises(ValueError, match="1 rows must be among the 0"):
        first.copy(first, 1)
