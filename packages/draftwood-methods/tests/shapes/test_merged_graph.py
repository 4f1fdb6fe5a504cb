"""Trees whose nodes share expansions: which do, what the drafter runs, and what it saves."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from draftwood.rng import Rng
from draftwood.shapes import BestFirst, Shape
from draftwood.tree import DraftTree
from draftwood_methods.shapes.merged_graph import MergedGraph


def table(order: int, vocab: int = 6, seed: int = 0) -> np.ndarray:
    rng = torch.Generator().manual_seed(seed)
    return (torch.randn((vocab,) * (order + 1), generator=rng) * 1.5).softmax(-1).numpy()


def grow(
    shape: Shape, rows: np.ndarray, max_draft_len: int = 9
) -> tuple[DraftTree, list[DraftTree]]:
    """A tree grown from a table by the newest tokens, and the trees that the drafter ran."""
    order, ran = rows.ndim - 1, []

    def expand(tree: DraftTree, first: int) -> np.ndarray:
        ran.append(tree)
        paths = [
            [0] * order + [tree.token_list[each] for each in [0, *tree.path_to(node)]]
            for node in range(first, len(tree))
        ]
        return np.stack([rows[tuple(path[-order:])] for path in paths])

    return shape.grow(0, expand, Rng(0), max_draft_len), ran


def nodes_of(tree: DraftTree) -> set[tuple[int, ...]]:
    return {
        tuple(tree.token_list[each] for each in tree.path_to(node)) for node in range(len(tree))
    }


@pytest.mark.parametrize("seed", range(5))
def test_without_sharing_it_is_the_tree_of_the_likeliest_nodes(seed: int) -> None:
    rows = table(2, seed=seed)
    apart, ran = grow(MergedGraph(3, 3, 8, agreeing=0), rows)
    usual, also_ran = grow(BestFirst(3, 3, 8), rows)
    assert nodes_of(apart) == nodes_of(usual)
    assert [len(tree) for tree in ran] == [len(tree) for tree in also_ran] == [1, 4, 7]


@pytest.mark.parametrize("agreeing", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_where_so_many_tokens_decide_sharing_only_saves_runs(agreeing: int, seed: int) -> None:
    """Then nodes that share have one distribution: the tree is the same."""
    rows = table(agreeing, seed=seed)
    shape = MergedGraph(4, 3, 12, agreeing)
    shared, ran = grow(shape, rows)
    apart, all_ran = grow(replace(shape, agreeing=0), rows)
    assert nodes_of(shared) == nodes_of(apart)
    # of three tokens in a row, two agree less often than one
    assert len(ran[-1]) < len(all_ran[-1]) or agreeing == 2


def test_nodes_share_what_the_first_of_them_was_told() -> None:
    """Both children of the root lead to token 3; only the first 3 is run."""
    rows = np.full((6, 6, 6), 1e-6)
    rows[0, 0, 1], rows[0, 0, 2] = 0.6, 0.4
    rows[0, 1, 3] = rows[0, 2, 3] = rows[1, 3, 4] = rows[2, 3, 5] = 1.0
    shared, ran = grow(MergedGraph(3, 2, 6), rows)
    assert ran[-1].token_list == [0, 1, 2, 3]
    assert {(1, 3, 4), (2, 3, 4)} <= nodes_of(shared)  # though after 2, 3 comes 5
    apart, _ = grow(MergedGraph(3, 2, 6, agreeing=2), rows)
    assert {(1, 3, 4), (2, 3, 5)} <= nodes_of(apart)


def test_a_node_does_not_share_with_one_above_it() -> None:
    """After 1 comes 1: each is run, as otherwise the first would say what follows itself."""
    rows = np.full((6, 6), 1e-6)
    rows[0, 1] = rows[1, 1] = 1.0
    _, ran = grow(MergedGraph(4, 1, 4), rows)
    assert [tree.token_list for tree in ran] == [[0], [0, 1], [0, 1, 1], [0, 1, 1, 1]]


def test_no_branch_is_longer_than_the_room() -> None:
    tree, ran = grow(MergedGraph(4, 3, 12), table(1), max_draft_len=2)
    assert (tree.depth, len(ran)) == (2, 2)
    lone, ran = grow(MergedGraph(4, 3, 12), table(1), max_draft_len=0)
    assert (len(lone), ran) == (1, [])


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="agreeing"):
        MergedGraph(agreeing=-1)
    with pytest.raises(ValueError, match="size"):
        MergedGraph(size=0)
