"""Heads side by side draft from the newest state, each its level, and cannot change a text."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwood import methods
from draftwood.drafters import Hydra, Medusa
from draftwood.drafters.drafter import DraftRequest, DraftSession, VerifiedTree
from draftwood.engine import Options, generate
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import BestFirst, Shape, Widths
from draftwood.testing import TableModel, check_drafter, tiny_llama
from draftwood.tree import DraftTree
from draftwood.verifiers import Match, Rejection
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel
from thinning import thinned
from tiny_heads import tiny_eagle, tiny_medusa

MODELS: dict[str, Callable[[], Model]] = {
    "native": lambda: NativeModel(tiny_llama(0, layers=4)),
    "int8": lambda: NativeModel(tiny_llama(0, layers=4), "int8"),
    "lean": lambda: LeanModel(tiny_llama(0, layers=4)),
    "general": lambda: TransformersModel(tiny_llama(0, layers=4)),
}
KINDS: dict[str, tuple[type[Medusa], dict[str, Any]]] = {
    "medusa": (Medusa, {}),
    "with the root": (Medusa, {"reads_root": True}),
    "hydra": (Hydra, {"sees_drafted": True}),
}
PROMPT = [1, 5, 7, 3, 5, 7, 20, 40, 60]


@pytest.fixture(scope="module", params=["lean", "native"])
def target(request: pytest.FixtureRequest) -> Model:
    return MODELS[request.param]()


def made(kind: str, target: Model, shape: Shape, tokens: Any = (), **settings: Any) -> Medusa:
    drafter, own = KINDS[kind]
    return drafter(tiny_medusa(target, tokens, **own, **settings), target, shape)


def steps_of(target: Model, drafter: Any, temperature: float = 0.0) -> list[Any]:
    chosen = drafter.draws == {"chosen"}
    options = Options(Sampling(temperature), 24, seed=3)
    return list(generate(target, drafter, Match() if chosen else Rejection(), PROMPT, options))


def said(steps: list[Any]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("path", MODELS)
def test_greedy_texts_are_the_models_own_on_every_path(path: str) -> None:
    target = MODELS[path]()
    wanted = said(steps_of(target, methods.build("plain", target).drafter))
    for kind in KINDS:
        for shape in (BestFirst(3, 3, 4), Widths((2, 2, 1))):
            drafter = made(kind, target, shape)
            assert (drafter.native is not None) == isinstance(target, NativeModel)
            steps = steps_of(target, drafter)
            assert said(steps) == wanted
            assert any(step.drafted for step in steps)


@pytest.mark.parametrize("kind", KINDS)
def test_heads_that_know_a_token_are_believed(target: Model, kind: str) -> None:
    """With one token in the draft vocabulary, drafts are right wherever it is next."""
    wanted = said(steps_of(target, methods.build("plain", target).drafter))
    common = max(set(wanted), key=wanted.count)
    steps = steps_of(target, made(kind, target, Widths((1,)), [common]))
    assert said(steps) == wanted
    assert sum(step.accepted for step in steps) >= 1


def begin(drafter: Medusa, tokens: list[int]) -> DraftSession:
    session = drafter.target.start()
    draft = drafter.start(DraftRequest(Sampling(1.0), Rng(0), session))
    say(draft, session, DraftTree.chain(tokens), range(len(tokens)))
    return draft


def say(draft: DraftSession, session: Any, tree: DraftTree, path: Any) -> None:
    output = session.forward(tree, hidden=draft.reads.hidden)
    session.commit(list(path))
    draft.update(VerifiedTree(tree, path, output))


def law(drafter: Medusa, text: list[int], root: int, path: list[int]) -> Tensor:
    """Distribution of the head after a text, the root and drafted tokens, from scratch."""
    head, target = drafter.placed.network, drafter.target
    layer = head.config.reads[0]
    state = target.start().extend(text, hidden=(layer,)).states(layer)[-1].float()
    read = [root, *path][: head.config.tokens(len(path))]
    embedded = target.embeddings_and_head.embed(torch.tensor(read, dtype=torch.long)).float()
    return drafter.placed.logits(head(len(path), state, embedded)[None]).softmax(-1)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_each_level_is_what_its_head_says_after_each_step(target: Model, kind: str) -> None:
    drafter = made(kind, target, Widths((2, 2, 1)))
    session = target.start()
    draft = drafter.start(DraftRequest(Sampling(1.0), Rng(0), session))
    say(draft, session, DraftTree.chain(PROMPT), range(len(PROMPT)))
    text = list(PROMPT)
    for root, kept in ((9, 2), (33, 0), (4, 1)):
        tree = draft.propose(root, Context(list(text), len(PROMPT), max_draft_len=5))
        assert tree.depth == 3
        assert tree.probs is not None
        for node in range(len(tree)):
            path = [tree.token_list[each] for each in tree.path_to(node)]
            if tree.children[node]:
                wanted = np.zeros(64)
                wanted[drafter.vocabulary.tokens] = law(drafter, text, root, path).detach()
                assert np.allclose(tree.probs[node], wanted, atol=1e-5, rtol=1e-4)
        deepest = max(range(len(tree)), key=lambda node: len(tree.path_to(node)))
        path = [0, *tree.path_to(deepest)[:kept]]
        say(draft, session, tree, path)
        text += [tree.token_list[node] for node in path]


@pytest.mark.parametrize("kind", KINDS)
def test_only_hydra_drafts_by_what_it_drafted(target: Model, kind: str) -> None:
    tree = begin(made(kind, target, Widths((2, 2))), PROMPT).propose(9, Context(PROMPT, 9))
    assert tree.probs is not None
    below = [tree.probs[child] for child in tree.children[0]]
    assert np.array_equal(below[0], below[1]) == (kind != "hydra")
    other = begin(made(kind, target, Widths((2, 2))), PROMPT).propose(8, Context(PROMPT, 9))
    assert other.probs is not None
    assert np.array_equal(other.probs[0], tree.probs[0]) == (kind == "medusa")


def test_nodes_of_several_levels_are_answered_in_their_order(target: Model) -> None:
    draft: Any = begin(made("hydra", target, Widths((1,))), PROMPT)
    tree = DraftTree.of([9, 4, 6, 8, 10], [-1, 0, 1, 0, 3])
    rows = draft.score(tree, 1)
    for node, row in enumerate(rows, 1):
        path = [tree.token_list[each] for each in tree.path_to(node)]
        wanted = law(draft.drafter, PROMPT, 9, path)
        torch.testing.assert_close(torch.from_numpy(row).softmax(-1), wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_trees_are_no_deeper_than_room_and_heads(target: Model, kind: str) -> None:
    drafter = made(kind, target, BestFirst(4, 2, 6), heads=2)
    for max_draft_len, depth in ((0, 0), (1, 1), (9, 2)):
        tree = begin(drafter, PROMPT).propose(9, Context(PROMPT, 9, max_draft_len))
        assert tree.depth == depth


@pytest.mark.parametrize("kind", thinned(["hydra", "medusa"], 2))
def test_requests_do_not_disturb_each_other(target: Model, kind: str) -> None:
    check_drafter(made(kind, target, BestFirst(3, 3, 4)), target)


def test_what_does_not_fit_is_refused(target: Model) -> None:
    trained = tiny_medusa(target)
    with pytest.raises(ValueError, match="choose method 'medusa'"):
        Hydra(trained, target)
    with pytest.raises(ValueError, match="choose method 'hydra'"):
        Medusa(tiny_medusa(target, sees_drafted=True), target)
    with pytest.raises(ValueError, match=r"at layers \[4\], the target has 64 at layers 0\.\.2"):
        Medusa(trained, LeanModel(tiny_llama(0, layers=2, dim=64)))
    with pytest.raises(ValueError, match="needs a model that gives hidden states"):
        Medusa(trained, TableModel(torch.zeros(64, 64)))
    with pytest.raises(ValueError, match="does not draft with a drafter of the kind 'eagle'"):
        Medusa(tiny_eagle(target), target)
    other = LeanModel(tiny_llama(1, layers=4))
    with pytest.raises(ValueError, match="other weights"):
        methods.build("medusa", other, head=trained)
