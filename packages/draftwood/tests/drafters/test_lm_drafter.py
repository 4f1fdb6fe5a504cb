"""A draft LM drafts from tokens alone, with what it keeps equal to what it would compute anew, and
cannot change a text.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwood import methods
from draftwood.drafters import Lm
from draftwood.drafters.drafter import DraftRequest, VerifiedTree
from draftwood.engine import Options, generate
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import BestFirst, Widths
from draftwood.shapes.shape import Shape
from draftwood.testing import TableModel, tiny_llama
from draftwood.tree import DraftTree
from draftwood_torch.heads.layers import HeadCache, causal
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel
from tiny_heads import tiny_eagle, tiny_lm

MODELS: dict[str, Callable[[], Model]] = {
    "native": lambda: NativeModel(tiny_llama(0, layers=2)),
    "lean": lambda: LeanModel(tiny_llama(0, layers=2)),
    "general": lambda: TransformersModel(tiny_llama(0, layers=2)),
}
PROMPT = [1, 5, 7, 3, 5, 7, 20, 40, 61]


@pytest.fixture(scope="module")
def target() -> Model:
    return MODELS["lean"]()


@pytest.mark.parametrize("path", MODELS)
def test_greedy_texts_are_the_models_own_on_every_path(path: str) -> None:
    target = MODELS[path]()

    def text(name: str, shape: Shape | None = None) -> list[int]:
        drafter = None if name == "plain" else tiny_lm(target)
        built = methods.build(name, target, shape=shape, head=drafter)
        options = Options(Sampling(), 12)
        steps = list(generate(target, built.drafter, built.verifier, PROMPT, options))
        assert any(step.drafted for step in steps) == (name != "plain")
        return [token for step in steps for token in step.tokens]

    wanted = text("plain")
    assert text("lm", BestFirst(3, 3, 4)) == wanted
    assert text("lm-rsd", Widths((2, 1))) == wanted


def begin(drafter: Lm):
    return drafter.start(DraftRequest(Sampling(), Rng(0, noise=False), drafter.target.start()))


def tell(draft, tokens: list[int]) -> None:
    draft.update(VerifiedTree(DraftTree.chain(tokens), range(len(tokens)), None))


def anew(drafter: Lm, tokens: list[int]) -> Tensor:
    """Distribution of the LM after a text, from scratch."""
    head = drafter.placed.network
    cache = HeadCache(head.config.layers, head.config.sizes, head.proj.weight)
    seen = causal(len(tokens), 0, head.config.window)
    embedded = drafter.target.embeddings_and_head.embed(torch.tensor(tokens)).float()
    states = head(embedded, torch.arange(len(tokens)), cache.attend(seen))
    logits = drafter.placed.logits(states[-1:])
    return torch.zeros(64).index_copy_(
        0, torch.from_numpy(drafter.vocabulary.tokens), logits.softmax(-1)[0]
    )


def compare(drafter: Lm, tree: DraftTree, text: list[int]) -> None:
    """A tree's rows are those computed anew."""
    assert tree.probs is not None
    assert len(tree) > 1
    inner = sorted(set(tree.parents.tolist()) - {-1})
    for node in inner:
        path = [tree.token_list[each] for each in tree.path_to(node)]
        wanted = anew(drafter, [*text, tree.token_list[0], *path])
        np.testing.assert_allclose(tree.probs[node], wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"layers": 2, "window": 5}], ids=str)
def test_steps_with_a_cache_equal_steps_from_scratch(target: Model, settings: dict) -> None:
    drafter = Lm(tiny_lm(target, **settings), target, Widths((2, 2)))
    draft = drafter.start(DraftRequest(Sampling(1.0), Rng(0), target.start()))
    written: list[int] = []
    for chunk in (PROMPT[:4], PROMPT[4:]):
        tell(draft, chunk)
        written += chunk
    for root, kept in ((9, 2), (33, 0), (4, 1)):
        assert len(draft.propose(root, Context(written, len(PROMPT), max_draft_len=0))) == 1
        tree = draft.propose(root, Context(written, len(PROMPT), max_draft_len=4))
        compare(drafter, tree, written)
        deepest = max(range(len(tree)), key=lambda node: len(tree.path_to(node)))
        path = [0, *tree.path_to(deepest)[:kept]]
        draft.update(VerifiedTree(tree, path, None))
        written += [tree.token_list[node] for node in path]
    tell(draft, [8, 11])  # a rest
    rows = draft.text.rows
    assert rows.cache.length == rows.text <= len(written)
    compare(drafter, draft.propose(3, Context([*written, 8, 11], 9)), [*written, 8, 11])


def test_a_cache_of_another_text_is_caught(target: Model) -> None:
    drafter = Lm(tiny_lm(target), target, Widths((2,)))
    draft = drafter.start(DraftRequest(Sampling(1.0), Rng(0), target.start()))
    tell(draft, PROMPT)
    tree = draft.propose(9, Context(PROMPT, 9))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        compare(drafter, tree, PROMPT[::-1])


def test_long_prompts_and_forks(target: Model) -> None:
    """Rows are run in pieces; a second answer takes over those of the prompt."""
    drafter = Lm(tiny_lm(target, window=20), target, Widths((1,)))
    tokens = [(7 * place) % 64 for place in range(500)]
    first, second = (
        drafter.start(DraftRequest(Sampling(1.0), Rng(0), target.start())) for _ in range(2)
    )
    for draft in (first, second):
        tell(draft, tokens)
    second.follow(first)
    compare(drafter, first.propose(5, Context(tokens, 500)), tokens)
    ran, text = [], second.text
    text._run = lambda taken, *rest: ran.append(len(taken)) or type(text)._run(text, taken, *rest)
    compare(drafter, second.propose(11, Context(tokens, 500)), tokens)
    assert ran == [1]


def test_what_does_not_fit_is_refused(target: Model) -> None:
    with pytest.raises(ValueError, match="of 32 entries, the target has 64"):
        Lm(tiny_lm(target), LeanModel(tiny_llama(0, layers=2, dim=64)))
    with pytest.raises(ValueError, match="needs a model"):
        Lm(tiny_lm(target), TableModel(torch.zeros(64, 64)))
    with pytest.raises(ValueError, match="does not draft with a drafter of the kind"):
        Lm(tiny_eagle(target), target)
