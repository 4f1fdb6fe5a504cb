"""Contract of every verifier."""

import dataclasses

import numpy as np
import pytest
from jaxtyping import Float

from draftwood.rng import Rng
from draftwood.testing import (
    Law,
    at_nodes,
    check_verifier,
    distance,
    emitted_law,
    outcomes,
    plain_tree,
    target_law,
    walks,
)
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers import Verdict, Verifier
from reference.verifiers import EXACT, VERIFIERS
from roads import softmax

by_name = pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda verifier: verifier.name)
exact = pytest.mark.parametrize(
    ("verifier", "draw"), EXACT, ids=lambda value: getattr(value, "name", value)
)


def tables(seed: int, vocab: int = 3, spread: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    scores = np.random.default_rng(seed).normal(0, spread, (2, vocab, vocab))
    target, draft = softmax(scores)
    return target, draft


def widths_for(verifier: Verifier, draw: Draw) -> tuple[int, ...]:
    return (1, 1) if verifier.name == "block" else (2, 1)


@pytest.mark.usefixtures("unchecked")
@by_name
def test_keeps_the_law_of_the_target(verifier: Verifier) -> None:
    check_verifier(verifier)


@by_name
def test_is_a_value_with_a_name_of_its_own(verifier: Verifier) -> None:
    assert dataclasses.is_dataclass(verifier)
    assert verifier == type(verifier)()
    assert hash(verifier) == hash(type(verifier)())
    assert [other.name for other in VERIFIERS].count(verifier.name) == 1


@exact
def test_works_in_32_bits(verifier: Verifier, draw: Draw) -> None:
    target, draft = (table.astype(np.float32) for table in tables(1))
    widths = widths_for(verifier, draw)
    law = emitted_law(verifier, plain_tree(widths, draw, draft), target, len(widths) + 1)
    assert distance(law, target_law(target, len(widths) + 1)) < 1e-6


@exact
def test_at_temperature_0_gives_the_greedy_text(verifier: Verifier, draw: Draw) -> None:
    for seed in range(20):
        target, draft = tables(seed, vocab=5)
        certain = np.eye(5)[target.argmax(-1)]
        grow = plain_tree(widths_for(verifier, draw), draw, draft)
        tree = grow(Rng(seed, noise=False))
        verdict = verifier(tree, at_nodes(certain, tree), Rng(seed, noise=False))
        token = tree.token_list[0]
        for emitted in [*(tree.token_list[node] for node in verdict.path), verdict.next_token]:
            token = int(target[token].argmax())
            assert emitted == token


@by_name
@pytest.mark.parametrize("draw", ["chosen", "distinct", "independent", "named"])
def test_a_lone_root_is_plain_decoding(verifier: Verifier, draw: Draw) -> None:
    target, _ = tables(2)
    tree = dataclasses.replace(DraftTree.of([1], [-1]), draw=draw)
    law: Law = {}
    for probability, verdict in outcomes(lambda rng: verifier(tree, target[1:2], rng)):
        assert verdict.path == []
        law[(verdict.next_token,)] = law.get((verdict.next_token,), 0.0) + probability
    assert distance(law, target_law(target, 1, start=(1,))) < 1e-12


class CountedRows:
    """The target's rows, and which of them were looked at."""

    def __init__(self, rows: Float[np.ndarray, "nodes vocab"]) -> None:
        self.rows, self.seen = rows, set()

    def __getitem__(self, node: int) -> Float[np.ndarray, " vocab"]:
        self.seen.add(node)
        return self.rows[node]


@pytest.mark.usefixtures("unchecked")
@exact
def test_looks_at_a_leaf_only_for_the_token_after_it(verifier: Verifier, draw: Draw) -> None:
    target, draft = tables(3)
    grow = plain_tree(widths_for(verifier, draw), draw, draft)

    def act(rng: Rng) -> tuple[DraftTree, Verdict, set[int]]:
        tree = grow(rng)
        rows = CountedRows(at_nodes(target, tree))
        return tree, verifier(tree, rows, rng), rows.seen

    for _, (tree, verdict, seen) in outcomes(act):
        leaves = {node for node in seen if not tree.children[node]}
        assert leaves <= {verdict.path[-1] if verdict.path else 0}


@pytest.mark.parametrize(
    ("verifier", "draw"),
    [pair for pair in EXACT if pair[1] != "named"],  # whose rows do not belong to nodes
    ids=lambda value: getattr(value, "name", value),
)
def test_rows_of_leaves_are_never_used(verifier: Verifier, draw: Draw) -> None:
    target, draft = tables(4)
    grow = plain_tree(widths_for(verifier, draw), draw, draft)

    def spoilt(rng: Rng) -> DraftTree:
        tree = grow(rng)
        leaves = [not tree.children[node] for node in range(len(tree))]
        rows = np.concatenate([tree.probs, np.zeros((len(tree) - len(tree.probs), 3))])
        rows[leaves] = np.nan
        return dataclasses.replace(tree, probs=rows)

    assert distance(emitted_law(verifier, spoilt, target, 3), target_law(target, 3)) < 1e-12


@pytest.mark.parametrize(
    "verifier", [v for v, draw in EXACT if draw == "independent" and v.name != "block"]
)
def test_of_twins_the_first_may_be_a_leaf(verifier: Verifier) -> None:
    target, draft = tables(5)

    def grow(rng: Rng) -> DraftTree:  # two siblings, of which only the second goes on
        first, second = (rng.draw(draft[0]) for _ in range(2))
        third = rng.draw(draft[second])
        rows = np.stack([draft[0], np.full(3, np.nan), draft[second]])
        return DraftTree(
            np.array([0, first, second, third]),
            np.array([-1, 0, 0, 2]),
            rows,
            "independent",
        )

    found = walks(verifier, grow, target)
    assert any(
        walk.verdict.path == [2, 3] and walk.tree.token_list[1] == walk.tree.token_list[2]
        for walk in found
    )
    for length in (1, 2, 3):
        assert (
            distance(emitted_law(verifier, grow, target, length), target_law(target, length))
            < 1e-12
        )


@exact
def test_tokens_the_draft_cannot_draw_are_no_drafts(verifier: Verifier, draw: Draw) -> None:
    target, _ = tables(6)
    # leaves nothing for a second child
    certain = np.tile([0.0, 1.0, 0.0], (3, 1))
    widths = (1, 1) if verifier.name == "block" else (3, 2)
    found = walks(verifier, plain_tree(widths, draw, certain), target)
    if verifier.name != "match":  # which only asks whether a child holds the token it drew
        assert all(walk.tree.token_list[node] == 1 for walk in found for node in walk.verdict.path)
    law = emitted_law(verifier, plain_tree(widths, draw, certain), target, 3)
    assert distance(law, target_law(target, 3)) < 1e-12


@exact
def test_laws_that_differ_by_rounding_alone(verifier: Verifier, draw: Draw) -> None:
    draft = np.tile([0.5, 0.5], (2, 1))
    target = np.tile([0.5 - 2**-54, 0.5 + 2**-53], (2, 1))
    for widths in ((1, 1), (1, 1, 1)) if verifier.name == "block" else ((1, 1), (2, 1), (1, 2)):
        law = emitted_law(verifier, plain_tree(widths, draw, draft), target, 2)
        assert distance(law, target_law(target, 2)) < 1e-12


def typical(**settings: float) -> Verifier:
    """Make one; its package needs PyTorch."""
    from draftwood_methods.verifiers.typical import Typical

    return Typical(**settings)


class TestTypical:
    def test_keeps_the_longest_path_of_likely_tokens(self) -> None:
        tree = DraftTree.of([0, 1, 2, 1, 2, 0], [-1, 0, 0, 2, 3, 1])
        rows = np.zeros((6, 3))
        rows[0] = [0.2, 0.3, 0.5]
        rows[1] = [0.05, 0.9, 0.05]  # the last node below it is too unlikely
        rows[2] = [0.0, 1.0, 0.0]
        rows[3] = [0.5, 0.5, 0.0]
        verdict = typical()(tree, rows, Rng(0))
        assert verdict.path == [2, 3]
        assert verdict.next_token in (0, 1)

    def test_bound_falls_with_entropy(self) -> None:
        tree = DraftTree.chain([0, 1])
        uniform = np.full((2, 16), 1 / 16)  # the bound is delta / 16
        assert typical(delta=0.9)(tree, uniform, Rng(0)).path == [1]
        assert typical(delta=1.1)(tree, uniform, Rng(0)).path == []

    @pytest.mark.parametrize(
        "settings", [{"epsilon": -0.1}, {"epsilon": 1.1}, {"delta": -1.0}, {"delta": float("nan")}]
    )
    def test_refuses_settings_out_of_range(self, settings: dict[str, float]) -> None:
        with pytest.raises(ValueError, match="epsilon must be between"):
            typical(**settings)


@by_name
@pytest.mark.parametrize("token", [-1, 3, 10**9])
def test_tokens_outside_the_vocabulary_are_refused(verifier: Verifier, token: int) -> None:
    """One from the end would be read as another token's probability, and be accepted."""
    target, draft = tables(4)

    def verify() -> Verdict:
        tree = DraftTree(np.array([0, token]), np.array([-1, 0]), draft[:1], "distinct")
        return verifier(tree, target[:2], Rng(0))

    with pytest.raises(ValueError, match=rf"tokens.* got .*{token}"):
        verify()
