"""Drafters made of others: what their trees hold, what they save, what they refuse."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from draftwood.drafters import Drafter, DraftModel, DraftRequest, PromptLookup, VerifiedTree
from draftwood.engine import Options, generate
from draftwood.models.model import ModelOutput
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import BestFirst, Widths
from draftwood.sources import Suffix
from draftwood.testing import TableModel, TableSession
from draftwood.testing.laws import distance, drafting, emitted_law, target_law
from draftwood.tree import DraftTree
from draftwood.verifiers import Match, Rejection, Verifier
from draftwood_methods.drafters.cascade import Cascade, LenientCascade
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
