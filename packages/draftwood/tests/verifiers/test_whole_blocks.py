"""Block verification and Traversal against exact values, and what independent twins are worth."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from draftwood.rng import Rng
from draftwood.testing import (
    Law,
    at_nodes,
    distance,
    emitted_law,
    law_of,
    mean_accepted,
    plain_tree,
    target_law,
    walks,
)
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers import Block, Rejection, Traversal, Verifier
from reference.verifiers import EXACT, ROWS, context_free
from roads import softmax

pytestmark = pytest.mark.usefixtures("unchecked")  # enumerations; other tests check these shapes

BINARY = context_free((1 / 3, 2 / 3)), context_free((2 / 3, 1 / 3))
EXAMPLE = ROWS[3].target, ROWS[3].draft


@pytest.mark.parametrize(
    ("tables", "length", "whole", "token_level"),
    [
        (BINARY, 2, Fraction(11, 9), Fraction(10, 9)),
        (BINARY, 3, Fraction(5, 3), Fraction(38, 27)),
        (EXAMPLE, 2, Fraction(5, 4), Fraction(119, 100)),
        (EXAMPLE, 3, Fraction(213, 125), Fraction(1533, 1000)),
    ],
)
def test_mean_accepted_length_of_chains(
    tables, length: int, whole: Fraction, token_level: Fraction
) -> None:
    target, draft = tables
    grow = plain_tree((1,) * length, "distinct", draft)
    assert mean_accepted(Block(), grow, target) == pytest.approx(float(whole), abs=1e-12)
    assert mean_accepted(Traversal(), grow, target) == pytest.approx(float(whole), abs=1e-12)
    assert mean_accepted(Rejection(), grow, target) == pytest.approx(float(token_level), abs=1e-12)


@pytest.mark.parametrize(
    ("verifier", "draw", "mean"),
    [
        (Traversal(), "distinct", Fraction(541, 320)),
        (Rejection(), "distinct", Fraction(105, 64)),
        (Traversal(), "independent", Fraction(4846, 3125)),
        (Rejection(), "independent", Fraction(94031, 62500)),
    ],
)
def test_mean_accepted_length_of_binary_trees(
    verifier: Verifier, draw: Draw, mean: Fraction
) -> None:
    target, draft = EXAMPLE
    grow = plain_tree((2, 2), draw, draft)
    assert mean_accepted(verifier, grow, target) == pytest.approx(float(mean), abs=1e-12)


@pytest.mark.parametrize(
    ("verifier", "mean"), [(Traversal(), Fraction(1933, 1250)), (Rejection(), Fraction(3731, 2500))]
)
def test_binary_trees_whose_twins_do_not_share_children(verifier: Verifier, mean: Fraction) -> None:
    target, draft = EXAMPLE
    grow = plain_tree((2, 2), "independent", draft)

    def apart(rng: Rng) -> DraftTree:  # any other label keeps q after a rejection, and twins apart
        return replace(grow(rng), draw="chosen")

    found = walks(verifier, apart, target)
    assert sum(walk.probability * len(walk.verdict.path) for walk in found) == pytest.approx(
        float(mean), abs=1e-12
    )
    assert distance(law_of(found, target, 3), target_law(target, 3)) < 1e-12


def test_the_value_of_shared_children_follows_from_a_formula() -> None:
    target, draft = EXAMPLE
    below = [_accepted_of(count, target[0], draft[0]) for count in range(5)]
    p, q = target[0].tolist(), draft[0].tolist()
    mean = 0.0
    for first, drawn in enumerate(q):
        for second, drawn_next in enumerate(q):
            keep = min(1.0, p[first] / q[first])
            left = [max(0.0, a - b) / 0.3 for a, b in zip(p, q, strict=True)]
            keep_next = (1.0 - keep) * min(1.0, left[second] / q[second])
            deeper = below[4] if first == second else below[2]
            mean += drawn * drawn_next * (keep + keep_next) * (1.0 + deeper)
    assert mean == pytest.approx(94031 / 62500, abs=1e-12)  # the value that enumeration gives above


def _accepted_of(count: int, p: np.ndarray, q: np.ndarray) -> float:
    rejected = 1.0
    for _ in range(count):
        overlap = float(np.minimum(p, q).sum())
        rejected *= 1.0 - overlap
        p = np.maximum(p - q, 0.0) / (1.0 - overlap)
    return 1.0 - rejected


class RefusingRng(Rng):
    """Refuses every test and remembers how likely it was to pass."""

    def __init__(self) -> None:
        super().__init__(0)
        self.asked: list[float] = []

    def accept(self, probability: float) -> bool:
        self.asked.append(probability)
        return False


def test_traversal_of_the_papers_example_tree() -> None:
    target, draft = EXAMPLE
    a, b, c = range(3)
    bare = DraftTree.of([a, a, c, b, c, a], [-1, 0, 0, 1, 1, 2])  # X1..X5 are nodes 1..5
    tree = DraftTree(bare.tokens, bare.parents, np.tile(draft, (2, 1))[: len(bare)], "distinct")
    rng = RefusingRng()
    verdict = Traversal()(tree, at_nodes(target, tree), rng)
    # X3, X4, X1, X5, X2; with 1/11 left to X1 after X3 failed, X4 passes with (1/11) / (1/7)
    assert rng.asked == pytest.approx([2 / 3, 7 / 11, 0.0, 1 / 2, 1.0], abs=1e-12)
    assert verdict.path == []


def test_block_refuses_a_tree_and_names_the_cure() -> None:
    target, draft = EXAMPLE
    tree = plain_tree((1, 2), "distinct", draft)(Rng(0))
    with pytest.raises(ValueError, match=r"needs a chain.*use Traversal"):
        Block()(tree, at_nodes(target, tree), Rng(0))


def test_block_and_traversal_emit_the_same_on_chains() -> None:
    target, draft = softmax(np.random.default_rng(4).random((2, 3, 3)) ** 2)
    grow = plain_tree((1, 1, 1), "distinct", draft)

    def by_tree(verifier: Verifier) -> Law:
        law: Law = {}
        for walk in walks(verifier, grow, target):
            key = (*walk.tree.token_list, len(walk.verdict.path), walk.verdict.next_token)
            law[key] = law.get(key, 0.0) + walk.probability
        return law

    assert distance(by_tree(Block()), by_tree(Traversal())) < 1e-12


def stopping(draft: np.ndarray, draw: Draw, stop: int = 1) -> Callable[[Rng], DraftTree]:
    """Chains of at most three tokens that end early after the token ``stop``, as a draft model
    unsure of itself.
    """

    def grow(rng: Rng) -> DraftTree:
        tokens = [0]
        while len(tokens) < 4 and tokens[-1] != stop:
            tokens.append(rng.draw(draft[tokens[-1]]))
        bare = DraftTree.chain(tokens)
        if len(tokens) == 1:
            return DraftTree(bare.tokens, bare.parents, None, draw)
        named = bare.parents if draw == "named" else None
        rows = draft[bare.tokens[:-1]]
        return DraftTree(bare.tokens, bare.parents, rows, draw, drawn_from=named)

    return grow


@pytest.mark.parametrize(("verifier", "draw"), EXACT)
def test_chains_may_stop_after_any_token(verifier: Verifier, draw: Draw) -> None:
    target, draft = softmax(2 * np.random.default_rng(5).random((2, 3, 3)))
    for length in (1, 2, 3, 4):
        law = emitted_law(verifier, stopping(draft, draw), target, length)
        assert distance(law, target_law(target, length)) < 1e-12
