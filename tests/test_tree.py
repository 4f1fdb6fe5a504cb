"""Properties that follow from a tree's parents, against brute force."""

import random

import jaxtyping
import numpy as np
import pytest

from draftwood.tree import DraftTree

SIZES = [1, 2, 3, 5, 8, 9, 17, 33]


def random_parents(size: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [-1] + [chance.randrange(node) for node in range(1, size)]


def random_tree(size: int, seed: int) -> DraftTree:
    return DraftTree.of(random.Random(seed).choices(range(50), k=size), random_parents(size, seed))


def line_of(parents: list[int], node: int) -> list[int]:
    """The node and all above it, upwards."""
    line = [node]
    while parents[line[-1]] >= 0:
        line.append(parents[line[-1]])
    return line


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(5))
def test_relations_equal_brute_force(size: int, seed: int) -> None:
    parents, tree = random_parents(size, seed), random_tree(size, seed)
    lines = [line_of(parents, node) for node in range(size)]
    assert tree.ancestors.tolist() == [[other in line for other in range(size)] for line in lines]
    assert tree.depths.tolist() == [len(line) - 1 for line in lines]
    assert tree.depth == max(len(line) for line in lines) - 1
    assert tree.children == [[n for n in range(size) if parents[n] == node] for node in range(size)]
    assert [tree.path_to(node) for node in range(size)] == [line[:-1][::-1] for line in lines]
    assert len(tree) == size
    assert tree.token_list == tree.tokens.tolist()


@pytest.mark.parametrize("size", SIZES)
def test_chains_are_trees_with_one_branch(size: int) -> None:
    tree = DraftTree.chain(list(range(5, 5 + size)), draw="distinct")
    assert tree.parents.tolist() == list(range(-1, size - 1))
    assert tree.depths.tolist() == list(range(size))
    assert tree.ancestors.tolist() == np.tri(size, dtype=np.bool_).tolist()
    assert tree.path_to(size - 1) == list(range(1, size))
    assert tree.draw == "distinct"


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 100])
@pytest.mark.parametrize("seed", range(4))
def test_cut_keeps_exactly_the_nodes_that_are_not_deeper(depth: int, seed: int) -> None:
    tree = random_tree(20, seed)
    kept = [node for node in range(20) if len(tree.path_to(node)) <= depth]
    cut = tree.truncated(depth)
    assert cut.token_list == [tree.token_list[node] for node in kept]
    assert cut.depth == min(depth, tree.depth)
    for new, old in enumerate(kept):
        assert [kept[node] for node in cut.path_to(new)] == tree.path_to(old)


def test_cutting_nothing_gives_the_same_tree() -> None:
    tree = random_tree(9, 1)
    assert tree.truncated(tree.depth) is tree


@pytest.mark.parametrize("as_array", [False, True])
def test_keep_renumbers_parents_and_rows(as_array: bool) -> None:
    probs = np.eye(3)
    tree = DraftTree(np.array([5, 6, 7, 8, 9]), np.array([-1, 0, 0, 1, 2]), probs, "distinct")
    kept = tree.keep(np.array([0, 2, 4]) if as_array else [0, 2, 4])
    assert kept.token_list == [5, 7, 9]
    assert kept.parents.tolist() == [-1, 0, 1]
    assert kept.draw == "distinct"
    assert kept.probs is not None
    assert np.array_equal(kept.probs, probs[[0, 2]])


def test_keep_reorders_where_parents_still_come_first() -> None:
    tree = DraftTree.of([5, 6, 7, 8], [-1, 0, 0, 1])
    assert tree.keep([0, 2, 1, 3]).parents.tolist() == [-1, 0, 0, 2]


def test_keep_refuses_orphans() -> None:
    tree = DraftTree.of([5, 6, 7], [-1, 0, 1])
    with pytest.raises(ValueError, match="every node must come after its parent"):
        tree.keep([0, 2])


def test_keep_refuses_rows_behind_leaves() -> None:
    tree = DraftTree(np.array([5, 6, 7]), np.array([-1, 0, 0]), np.eye(2))
    with pytest.raises(ValueError, match="must stand before those without"):
        tree.keep([0, 2, 1])


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ([], [], "needs a root"),
        ([1], [0], "only the root has parent -1"),
        ([1, 2], [-1, -1], "only the root has parent -1"),
        ([1, 2], [-1, 1], "come after its parent"),
        ([1, 2, 3], [-1, 2, 0], "come after its parent"),
        ([1, 2, 3], [-1, 0, 3], "come after its parent"),
        ([1, 2], [-1, -2], "come after its parent"),
    ],
)
def test_impossible_trees_are_refused(tokens: list[int], parents: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DraftTree(np.array(tokens, np.int64), np.array(parents, np.int64))


def test_tokens_without_parents_are_refused() -> None:
    # the latter in tests only
    with pytest.raises((ValueError, jaxtyping.TypeCheckError), match="parents"):
        DraftTree(np.array([1, 2]), np.array([-1]))


@pytest.mark.usefixtures("unchecked")
def test_tensors_become_arrays() -> None:
    torch = pytest.importorskip("torch")
    tokens, parents = torch.tensor([5, 6]), torch.tensor([-1, 0])
    tree = DraftTree(tokens, parents, torch.eye(2, dtype=torch.bfloat16), "independent")
    assert {type(each) for each in (tree.tokens, tree.parents, tree.probs)} == {np.ndarray}
    assert tree.probs.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert tree.tokens.ctypes.data == tokens.data_ptr()
