"""Groups of tokens: who belongs to one, what they change, and that one of one token does not."""

from typing import Any, ClassVar

import numpy as np
import pytest

from draftwood.rng import Rng
from draftwood.sampling import Context, LazyProbs, Sampling
from draftwood.testing import check_verifier, distance, emitted_law, plain_tree, target_law
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers import Grouped, Match, Rejection
from draftwood.verifiers.rows import ArrayRow

P = np.array([0.30, 0.25, 0.2, 0.15, 0.1, 0.0])
Q = np.array([0.1, 0.1, 0.1, 0.1, 0.3, 0.3])


@pytest.mark.parametrize(
    ("group", "delta", "token", "others"),
    [
        (1, 1.0, 2, []),
        (2, 1.0, 2, [3]),
        (3, 1.0, 2, [1, 3]),
        (4, 1.0, 2, [1, 3, 4]),
        (9, 1.0, 2, [0, 1, 3, 4, 5]),
        (9, 0.15, 4, [1, 2, 3, 5]),
        (9, 0.06, 2, [1, 3]),
        (9, 0.0, 2, []),
    ],
)
def test_a_group_holds_the_nearest_in_rank_that_are_near(
    group: int, delta: float, token: int, others: list[int]
) -> None:
    rule = Grouped(group, delta)
    assert sorted(rule._beside(P, token).tolist()) == others
    members = [token, *others]
    expected = P[members].sum() / Q[members].sum()
    assert rule._chance(ArrayRow(P), ArrayRow(Q), token) == pytest.approx(expected)


VECTORS = np.array([[0.0, 0], [0, 1], [0, 2], [1, 2], [3, 2], [np.nan, 0]], np.float32)


@pytest.mark.parametrize(
    ("token", "distance", "others"),
    [(2, 0.0, []), (2, 1.0, [1, 3]), (2, 4.0, [0, 1, 3]), (2, np.inf, [0, 1, 3, 4]), (4, 1.0, [])],
)
def test_groups_hold_what_is_near_in_the_codebook(
    token: int, distance: float, others: list[int]
) -> None:
    rule = Grouped(9, 1.0, VECTORS, distance)
    assert sorted(rule._beside(P, token).tolist()) == others
    assert rule == Grouped(9, 1.0, distance=distance)


def test_what_is_far_in_the_codebook_leaves_its_rank_empty() -> None:
    p = np.array([0.20, 0.19, 0.18, 0.17, 0.16, 0.10])
    vectors = np.array([[0.0], [9], [9], [9], [0.1], [0.2]], np.float32)
    alone, wide = (sorted(Grouped(each, 0.5, vectors, 0.5)._beside(p, 0)) for each in (3, 9))
    assert alone == []  # of the group of 3 there is token 1, which is far
    assert wide == [4]


def test_what_is_forbidden_is_never_kept() -> None:
    assert Grouped(9, 1.0)._chance(ArrayRow(P), ArrayRow(Q), 5) == 0.0


def random_tree(chance: np.random.Generator, draw: Draw) -> tuple[DraftTree, np.ndarray]:
    """A tree of six nodes with rows that its tokens may come from, and the target's logits."""
    probs = chance.dirichlet(np.ones(7), 4).astype(np.float32)
    tokens = np.array([0, *chance.choice(7, 2, replace=False), *chance.integers(0, 7, 3)])
    tree = DraftTree(tokens, np.array([-1, 0, 0, 1, 2, 3]), probs, draw)
    return tree, chance.normal(size=(6, 7)).astype(np.float32)


@pytest.mark.parametrize("draw", ["independent", "distinct"])
def test_groups_of_one_are_rejection_draw_by_draw(draw: Draw) -> None:
    differing = 0
    for seed in range(300):
        tree, logits = random_tree(np.random.default_rng(seed), draw)
        for sampling in (Sampling(0.8), Sampling(0.8, top_k=4), Sampling(0.0)):
            rules, rngs = (Rejection(), Grouped(1), Grouped(5)), [Rng(seed) for _ in range(3)]
            plain, one, five = (
                rule(tree, LazyProbs(logits, sampling, tree, Context([0], 1)), rng)
                for rule, rng in zip(rules, rngs, strict=True)
            )
            assert one == plain
            assert rngs[0].state == rngs[1].state
            differing += five != plain
    assert differing > 50  # where groups are larger the comparison sees it


TARGET, DRAFT = np.random.default_rng(3).dirichlet(np.ones(4), (2, 4))


def law_is_off(rule: Grouped) -> float:
    """Distance of the law of two tokens from the target's."""
    found = emitted_law(rule, plain_tree((1, 1), "independent", DRAFT), TARGET, 2)
    return distance(found, target_law(TARGET, 2))


@pytest.mark.parametrize("group", [2, 4])
def test_groups_change_the_law_and_say_so(group: int) -> None:
    assert not Grouped.exact_for
    assert law_is_off(Grouped(1)) < 1e-12
    assert law_is_off(Grouped(group, 1.0)) > 0.01


def test_checks_refuse_a_rule_that_claims_to_be_exact() -> None:
    class Claiming(Grouped):
        exact_for: ClassVar[frozenset[Draw]] = frozenset({"independent"})

    check_verifier(Claiming(1))
    with pytest.raises(AssertionError):
        check_verifier(Claiming(4, 1.0))


def test_groups_keep_the_greedy_text() -> None:
    for seed in range(100):
        tree, logits = random_tree(np.random.default_rng(seed), "independent")
        probs = LazyProbs(logits, Sampling(0.0), tree, Context([0], 1))
        by_group, by_match = (rule(tree, probs, Rng(seed)) for rule in (Grouped(), Match()))
        texts = [
            [*(tree.token_list[node] for node in each.path), each.next_token]
            for each in (by_group, by_match)
        ]
        assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "arguments",
    [(0, 0.15), (3, -0.1), (3, 1.5), (3, float("nan")), (3, 0.1, VECTORS, -1.0)],
)
def test_settings_out_of_range_are_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Grouped(*arguments)
