"""Drafters made of others: what their trees hold, what they save, what they refuse."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from draftwood.drafters import Drafter, DraftModel, DraftRequest, PromptLookup, VerifiedTree
from draftwood.engine import Options, generate
from draftwood.models.model import ModelOutput
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import BestFirst, Widths
from draftwood.sources import Suffix
from draftwood.testing import TableModel, TableSession, tiny_llama
from draftwood.testing.laws import distance, drafting, emitted_law, target_law
from draftwood.tree import DraftTree
from draftwood.verifiers import Match, Rejection, Verifier
from draftwood_methods.drafters.cascade import Cascade, LenientCascade, _CascadeSession
from draftwood_methods.drafters.merged import MergedDrafters, MergedDrawn
from draftwood_methods.drafters.per_level import PerLevel, _longer
from draftwood_methods.drafters.stand import Stand
from law_cases import contextual
from reference.sessions import InPython

VOCAB = 5


def text(drafter: Drafter, rule: Verifier, seed: int = 0, length: int = 80) -> list[int]:
    options = Options(Sampling(0.9), length, seed=seed)
    steps = generate(contextual(VOCAB)[0], drafter, rule, [0, 3, 1, 4], options)
    return [token for step in steps for token in step.tokens]


class Counted(TableModel):
    """A table that counts its forward passes over trees."""

    passes = 0

    def start(self) -> TableSession:
        return CountedSession(self)


class CountedSession(TableSession):
    def forward(self, tree: DraftTree, first: int = 0, hidden: Sequence[int] = ()) -> ModelOutput:
        Counted.passes += 1
        return super().forward(tree, first, hidden)


@pytest.fixture
def small() -> TableModel:
    """The draft model, which counts its passes from 0 on."""
    Counted.passes = 0
    return Counted(contextual(VOCAB)[1].logits)


@pytest.mark.parametrize("seed", range(3))
def test_a_cascade_draws_just_what_its_model_alone_would(seed: int, small: TableModel) -> None:
    chain = text(DraftModel(small, Widths((1,) * 4)), Rejection(), seed)
    for cascade in (Cascade(small, ahead=0), Cascade(small), Cascade(small, least=0.0, order=1)):
        assert text(cascade, Rejection(), seed) == chain


def test_tables_save_runs_of_the_model_and_leniency_saves_more(small: TableModel) -> None:
    passes = []
    for cascade in (Cascade(small, ahead=0), Cascade(small), LenientCascade(small)):
        Counted.passes = 0
        text(cascade, Match())  # the text is the same, whatever is drafted
        passes.append(Counted.passes)
    assert passes[0] > 1.1 * passes[1]
    assert passes[1] > 1.05 * passes[2]


def test_tables_of_a_model_that_knows_more_tokens_name_none_of_these() -> None:
    logits = np.zeros((VOCAB + 2, VOCAB + 2), np.float32)
    logits[:, -1], logits[:, :2] = 9.0, 1.0
    wide = LenientCascade(TableModel(logits), 3, least=0.0)
    assert text(wide, Match()) == text(PromptLookup(), Match())


def test_siblings_of_a_cascade_hang_beside_the_chain(small: TableModel) -> None:
    session = Cascade(small, 3, width=2).start(
        DraftRequest(Sampling(1.0), Rng(0), contextual(VOCAB)[0].start())
    )
    session.update(VerifiedTree(DraftTree.chain([1, 2]), range(2)))
    tree = session.propose(3, Context([1, 2], 2))
    assert tree.parent_list == [-1, 0, 1, 2, 0, 1, 2]
    assert tree.draw == "distinct"
    assert tree.probs is not None
    assert len(tree.probs) == 3
    assert len(session.propose(3, Context([1, 2], 2, max_draft_len=0))) == 1


def test_a_cascades_tables_learn_of_the_end_of_a_long_prompt(small: TableModel) -> None:
    prompt = [0, 3, 1, 4, 2] * 8
    request = DraftRequest(Sampling(1.0), Rng(0), contextual(VOCAB)[0].start())
    session = Cascade(small, 3).start(request)
    assert isinstance(session, _CascadeSession)
    session.update(VerifiedTree(DraftTree.chain(prompt), range(len(prompt))))
    session.propose(3, Context(prompt, len(prompt)))
    learnt = session.tables.tables[-1]
    assert {tuple(prompt[place : place + 3]) for place in range(5)} <= learnt.keys()


@pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
def test_a_draft_models_rows_stay_where_a_larger_tree_holds_its_own() -> None:
    target = NativeModel(tiny_llama(0, layers=2), "float32")
    drafter = DraftModel(NativeModel(tiny_llama(1, layers=1), "float32"), Widths((1, 1)))
    request = DraftRequest(Sampling(1.0), Rng(0), target.start())
    session = drafter.start(request)
    session.update(VerifiedTree(DraftTree.chain([1, 2, 3]), range(3)))
    tree = session.propose(4, Context([1, 2, 3], 3))
    root, first, second = tree.token_list
    length = request.started[0].length
    other = DraftTree.of([root, second, first, 9], [-1, 0, 0, 2])
    session.update(VerifiedTree(other, [0, 2, 3]))
    assert request.started[0].length == length + 2  # the root and its first child


def chosen(tokens: list[int], parents: list[int]) -> DraftTree:
    return DraftTree.of(tokens, parents)


def test_a_union_holds_every_text_once() -> None:
    merged = MergedDrafters((PromptLookup(), Stand()))
    tree = merged.join(
        7, [chosen([7, 1, 2, 3], [-1, 0, 1, 0]), chosen([7, 3, 1, 4], [-1, 0, 0, 2])]
    )
    assert tree.token_list == [7, 1, 2, 3, 4]
    assert tree.parent_list == [-1, 0, 1, 0, 1]
    assert tree.sources == (
        (),
        ("prompt-lookup", "stand"),
        ("prompt-lookup",),
        ("prompt-lookup", "stand"),
        ("stand",),
    )


def test_drawn_trees_keep_both_of_equal_siblings_and_a_row_for_each() -> None:
    rows = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]], np.float32)
    pair = DraftTree(np.array([0, 1, 2]), np.array([-1, 0, 0]), rows[:1], "distinct")
    chain = DraftTree(np.array([0, 1, 1]), np.array([-1, 0, 1]), rows, "independent")
    tree = MergedDrawn((Stand(), Stand())).join(0, [pair, chain])
    assert tree.token_list == [0, 1, 2, 1, 1]
    assert tree.parent_list == [-1, 0, 0, 0, 3]
    assert np.allclose(tree.row_of(1), rows[0])
    assert np.allclose(tree.row_of(2), [2 / 3, 0.0, 1 / 3])  # without token 1
    assert np.allclose(tree.row_of(4), rows[1])
    kept = tree.keep([0, 3, 4])
    assert np.array_equal(kept.row_of(2), tree.row_of(4))
    chances = tree.without_probs().chances
    assert chances is not None
    assert np.allclose(chances, [1.0, 0.25, 1 / 3, 0.25, 1.0])


def test_far_tokens_leave_the_rows_of_drawn_trees_that_name_them() -> None:
    """Siblings of two drafters lie in rows of their own, which a longer tree must keep."""
    likely = [np.tile(np.array(row), (3, 1)) for row in ([0.1, 0.1, 0.8], [0.8, 0.1, 0.1])]
    merged = MergedDrawn((Stand(), Stand()))
    target = np.tile(np.array([0.5, 0.3, 0.2]), (3, 1))

    def drawn(rng: Rng) -> DraftTree:
        return merged.join(0, [drafting(Widths((1,)), each)(rng) for each in likely])

    def longer(rng: Rng) -> DraftTree:
        tree = drawn(rng)
        return _longer(tree, 1, [2], [{2: 1.0}], "far")

    def unnamed(rng: Rng) -> DraftTree:
        return replace(drawn(rng), draw="independent", drawn_from=None)

    for grow, exact in ((drawn, True), (longer, True), (unnamed, False)):
        found = distance(emitted_law(Rejection(), grow, target, 2), target_law(target, 2))
        assert (found < 1e-6) == exact
    tree = longer(Rng(0))
    assert np.array_equal(tree.row_of(3), [0.0, 0.0, 1.0])
    assert tree.sources == ((), ("stand",), ("stand",), ("far",))
    with pytest.raises(ValueError, match="give drawn_from"):
        replace(tree, drawn_from=None)


def test_far_tokens_follow_the_deepest_path(small: TableModel) -> None:
    prompt = [1, 2, 3, 4, 1, 2, 3]
    near = DraftModel(small, BestFirst(2, 2, 3))
    session = PerLevel(near, InPython(Suffix()), 2).start(
        DraftRequest(Sampling(0.0), Rng(0, noise=False), contextual(VOCAB)[0].start())
    )
    session.update(VerifiedTree(DraftTree.chain(prompt), range(len(prompt))))
    tree = session.propose(4, Context(prompt, len(prompt)))
    assert (len(tree), tree.depth, tree.draw) == (6, 4, "chosen")
    for max_draft_len in (1, 2, 3):
        assert (
            session.propose(4, Context(prompt, len(prompt), max_draft_len=max_draft_len)).depth
            <= max_draft_len
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: MergedDrafters(()), "at least one drafter"),
        (lambda model: MergedDrawn((DraftModel(model, BestFirst()),)), "distinct or independent"),
        (lambda model: MergedDrawn((PromptLookup(),)), "those of prompt-lookup are chosen"),
        (lambda model: Cascade(model, 0), "length"),
        (lambda model: Cascade(model, ahead=-1), "ahead"),
        (lambda model: Cascade(model, least=1.5), "least"),
        (lambda model: Cascade(model, leniency=0.5), "leniency at least 1"),
        (lambda model: PerLevel(DraftModel(model), far=0), "far"),
        (lambda model: PerLevel(DraftModel(model), Suffix()), "take draftwood_methods.n_grams"),
    ],
)
def test_impossible_compositions_are_refused(make, message: str, small: TableModel) -> None:
    with pytest.raises(ValueError, match=message):
        make(small)
