"""Every shape: what its trees look like, that they tell the truth, and that lies are caught."""

from dataclasses import dataclass, replace
from math import prod
from time import process_time
from typing import ClassVar

import numpy as np
import pytest
import torch

from draftwood.rng import Rng
from draftwood.shapes import BestFirst, Independent, Paths, Sequoia, Shape, StochasticBeam, Widths
from draftwood.shapes.base import joined
from draftwood.shapes.sequoia import plan
from draftwood.shapes.stochastic_beam import falling_values
from draftwood.testing import check_shape, chi_square
from draftwood.tree import UNBOUNDED, DraftTree, Draw
from law_cases import SHAPES, ThrownAway
from thinning import thinned


def table(vocab: int = 6, seed: int = 0) -> np.ndarray:
    scores = torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(seed)) * 1.5
    return scores.softmax(-1).numpy()


def grow(shape: Shape, rng: Rng, probs: np.ndarray | None = None) -> DraftTree:
    rows = table() if probs is None else probs
    return shape.grow(0, lambda tree, first: rows[tree.tokens[first:]], rng)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", thinned(SHAPES, 2), ids=str)
def test_trees_tell_the_truth(shape: Shape) -> None:
    check_shape(shape)


@dataclass(frozen=True)
class Likeliest:
    """Drawn siblings put in order of probability: the order of drawing is lost."""

    name: ClassVar[str] = "likeliest"
    draw: Draw = "distinct"
    nodes: int = 2
    depth: int = 1
    label: str = "two"

    def grow(self, root: int, expand, rng: Rng) -> DraftTree:
        tree = Widths((2,)).grow(root, expand, rng)
        drawn = tree.tokens[1:]
        order = (-tree.probs[0, drawn]).argsort()
        return replace(tree, tokens=np.append(tree.tokens[:1], drawn[order]))


@dataclass(frozen=True)
class Mislabelled:
    """The likeliest tokens, called drawn."""

    name: ClassVar[str] = "mislabelled"
    draw: Draw = "distinct"
    nodes: int = 2
    depth: int = 1
    label: str = "two"

    def grow(self, root: int, expand, rng: Rng) -> DraftTree:
        tree = Paths(((0,), (1,))).grow(root, expand, rng)
        return replace(tree, draw="distinct", probs=expand(DraftTree.of([root], [-1]), 0))


@dataclass(frozen=True)
class Pruned:
    """Unlikely drawn tokens dropped: which nodes exist depends on what they are."""

    name: ClassVar[str] = "pruned"
    draw: Draw = "distinct"
    nodes: int = 2
    depth: int = 1
    label: str = "two"

    def grow(self, root: int, expand, rng: Rng) -> DraftTree:
        tree = Widths((2,)).grow(root, expand, rng)
        return tree.keep([0] + [n for n in (1, 2) if tree.probs[0, tree.tokens[n]] > 0.3])


@dataclass(frozen=True)
class OtherRows:
    """Rows that are not what was drawn from."""

    name: ClassVar[str] = "other rows"
    draw: Draw = "distinct"
    nodes: int = 2
    depth: int = 1
    label: str = "two"

    def grow(self, root: int, expand, rng: Rng) -> DraftTree:
        tree = Widths((2,)).grow(root, expand, rng)
        return replace(tree, probs=np.sqrt(tree.probs) / np.sqrt(tree.probs).sum(-1, keepdims=True))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("shape", "lie"),
    [
        (Likeliest(), "from the target's"),
        (Mislabelled(), "from the target's"),
        (Pruned(), "from the target's"),
        (OtherRows(), "row 0 is not what expand gave"),
        (ThrownAway(), "from the target's"),
    ],
    ids=lambda given: getattr(given, "name", None),
)
def test_lies_are_caught(shape: Shape, lie: str) -> None:
    with pytest.raises(AssertionError, match=lie):
        check_shape(shape)


@dataclass(frozen=True)
class Stating:
    """True trees, and any statement on them."""

    name: ClassVar[str] = "stating"
    draw: Draw = "distinct"
    nodes: int = 4
    depth: int = 2
    label: str = "two chains"

    def grow(self, root: int, expand, rng: Rng, max_draft_len: int = UNBOUNDED) -> DraftTree:
        return Widths((2, 1)).grow(root, expand, rng, max_draft_len)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("stated", "lie"),
    [
        ({"draw": "independent"}, "were distinct, but draw says independent"),
        ({"draw": "chosen"}, "were distinct, but draw says chosen"),
        ({"nodes": 3}, "4 nodes drafted, but nodes says 3"),
        ({"nodes": 5}, "4 nodes drafted, but nodes says 5"),
        ({"depth": 1}, "ran 2 levels, but depth says 1"),
        ({"depth": 3}, "ran 2 levels, but depth says 3"),
        ({"label": " "}, "label must name the settings"),
        ({"label": None}, "label must be a text, got None"),
    ],
)
def test_wrong_statements_are_caught(stated: dict, lie: str) -> None:
    check_shape(Stating())
    with pytest.raises(AssertionError, match=lie):
        check_shape(replace(Stating(), **stated))


def test_what_shapes_say_of_themselves() -> None:
    assert [shape.label for shape in SHAPES] == [
        *("widths 1-1", "widths 2-2", "widths 3-1, budget 5", "widths 2-2, independent"),
        *("widths 3-2, greedy-plus-one", "independent 2x2"),
        *("stochastic-beam 2x2", "stochastic-beam 3x2, budget 5"),
        *("paths 2-2", "best-first 2x2, keep 4", "sequoia 2-3"),
        *("until 0.3 by entropy, at most 3", "until 0.3 by probability, at most 3"),
        "merged-graph 2x3, keep 5, 1 agreeing",
    ]
    assert len(set(map(repr, SHAPES))) == len({shape.label for shape in SHAPES})
    assert [Widths((2, 2), budget=budget).depth for budget in (1, 2, 3, 6)] == [1, 1, 2, 2]
    assert [StochasticBeam(3, 4, budget=budget).depth for budget in (3, 4, 12)] == [1, 2, 4]
    assert Sequoia((0.9,), budget=3, max_depth=6).depth == 3


def test_rows_that_lie_one_behind_the_other_are_not_copied() -> None:
    memory = np.random.default_rng(0).random((6, 4))
    whole = joined([memory[1:2], memory[2:5]])
    assert np.array_equal(whole, memory[1:5])
    assert whole.ctypes.data == memory[1].ctypes.data
    for blocks in (
        [memory[0:1], memory[2:4]],
        [memory[1:2], memory[0:1]],
        [memory[:1], memory[1:2].copy()],
    ):
        assert np.array_equal(joined(blocks), np.concatenate(blocks))
    columns = [memory[:2, :3], memory[2:, :3]]
    assert np.array_equal(joined(columns), np.concatenate(columns))


def test_widths() -> None:
    tree = grow(Widths((3, 2)), Rng(0))
    assert tree.parents.tolist() == [-1, 0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert all(len({tree.token_list[c] for c in family}) == len(family) for family in tree.children)
    assert tree.probs is not None
    assert len(tree.probs) == 4
    chain = grow(Widths((1, 1, 1)), Rng(0))
    assert chain.parents.tolist() == [-1, 0, 1, 2]


def test_greedy_plus_one_is_the_likeliest_and_one_more() -> None:
    row = table()[0]
    for seed in range(20):
        tree = grow(Widths((3,), "greedy-plus-one"), Rng(seed))
        assert tree.token_list[1:3] == (-row).argsort()[:2].tolist()
        assert tree.token_list[3] not in tree.token_list[1:3]


def test_independent_chains() -> None:
    tree = grow(Independent(3, 4), Rng(0))
    assert len(tree.children[0]) == 3
    assert all(len(family) == 1 for family in tree.children[1:10])
    assert tree.draw == "independent"


def test_stochastic_beam_keeps_so_many_a_level_and_leaves_stay() -> None:
    shape = StochasticBeam(3, 3)
    families = set()
    for seed in range(30):
        tree = grow(shape, Rng(seed))
        assert len(tree) == 10
        assert np.bincount(tree.depths).tolist() == [1, 3, 3, 3]
        families.add(tuple(sorted(len(family) for family in tree.children)))
    assert len(families) > 2  # a random number of children


def reference_beam(
    probs: np.ndarray, width: int, depth: int, rng: torch.Generator
) -> tuple[int, ...]:
    """Stochastic Beam Search as it is written down: noise for every token, shifted to the parent's
    maximum.
    """
    beams = [((0,), 0.0, 0.0)]
    found: list[int] = []
    for _ in range(depth):
        children = []
        for tokens, phi, psi in beams:
            log_probs = phi + torch.from_numpy(probs[tokens[-1]]).log()
            noisy = (
                log_probs
                - (-torch.rand(len(log_probs), generator=rng, dtype=torch.float64).log()).log()
            )
            values = -torch.log(
                torch.exp(torch.tensor(-psi)) - torch.exp(-noisy.max()) + torch.exp(-noisy)
            )
            children += [
                ((*tokens, t), float(log_probs[t]), float(values[t])) for t in range(len(log_probs))
            ]
        beams = sorted(children, key=lambda child: -child[2])[:width]
        found += [token for tokens, _, _ in beams for token in tokens[1:]]
    return tuple(found)


@pytest.mark.proof
@pytest.mark.usefixtures("unchecked")
def test_stochastic_beam_has_the_law_of_the_written_formula() -> None:
    probs, texts = table(3, seed=4).astype(np.float64), 6000
    rng, own = torch.Generator().manual_seed(0), Rng(0)
    reference: dict[tuple[int, ...], int] = {}
    counts: dict[tuple[int, ...], int] = {}
    wrong: dict[tuple[int, ...], int] = {}
    for _ in range(4 * texts):
        key = reference_beam(probs, 2, 2, rng)
        reference[key] = reference.get(key, 0) + 1
    for _ in range(texts):
        for shape, into in ((StochasticBeam(2, 2), counts), (Widths((2, 1)), wrong)):
            tree = grow(shape, own, probs)
            level = [
                [n for n in range(len(tree)) if int(tree.depths[n]) == depth] for depth in (1, 2)
            ]
            key = tuple(
                tree.token_list[m] for nodes in level for n in nodes for m in tree.path_to(n)
            )
            into[key] = into.get(key, 0) + 1
    law = {key: count / (4 * texts) for key, count in reference.items()}
    assert chi_square({k: v for k, v in counts.items() if k in law}, law) > 1e-5
    # outcomes too rare for the reference's sample
    assert sum(v for k, v in counts.items() if k not in law) <= 3
    # one child each is another law
    assert chi_square({k: v for k, v in wrong.items() if k in law}, law) < 1e-9


def test_perturbed_values_fall_and_survive_extremes() -> None:
    beams = zip(
        [0.0, -50.0, -600.0],
        [3.0, 0.1, -9.0],
        [[0.9, 0.1, 0.0], [1.0, 0.0, 0.0], [1e-30, 1e-35, 0.0]],
        Rng(0).exponential(3, 3).tolist(),
        strict=True,
    )
    values = np.array([falling_values(*beam) for beam in beams])
    assert values[:, 0].tolist() == pytest.approx([3.0, 0.1, -9.0])
    assert not np.isnan(values).any()
    assert (values[:, 1:] <= values[:, :-1]).all()
    assert values[0, 2] == -np.inf
    assert values[1, 1] == -np.inf
    assert falling_values(-1000.0, -0.5, [0.6, 0.4], [1.0, 1.0])[0] == -0.5


def test_paths_follow_ranks() -> None:
    probs = table()
    tree = grow(Paths(((0,), (1,), (0, 0), (0, 1))), Rng(0), probs)
    first, second = (-probs[0]).argsort()[:2].tolist()
    assert tree.token_list == [0, first, second, *(-probs[first]).argsort()[:2].tolist()]


def test_paths_keep_small_ranks_near_the_root_within_a_budget() -> None:
    every = Paths(tuple((*above, rank) for above in ((), (0,), (1,), (0, 0)) for rank in range(3)))
    assert replace(every, budget=4).levels[0].ranks == (0, 1)
    assert [len(level.ranks) for level in replace(every, budget=4).levels] == [2, 1, 1]
    assert replace(every, budget=4).nodes == 4


@pytest.mark.parametrize("vocabulary", [2, 3, 6])
def test_a_plan_wider_than_the_vocabulary_keeps_what_there_is(vocabulary: int) -> None:
    plan = Sequoia(budget=40, max_depth=3)
    wanted = [path for path in plan.paths if max(path) < vocabulary]
    assert len(wanted) < len(plan.paths)
    probs = np.full((vocabulary, vocabulary), 1 / vocabulary, np.float32)
    tree = plan.grow(0, lambda grown, first: np.log(probs[grown.tokens[first:]]), Rng(0))
    assert sorted(rank_paths(tree)) == sorted(wanted)


def rank_paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """Each node but the root as its rank path."""
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, len(tree)):
        parent = tree.parent_list[node]
        paths.append((*paths[parent], list(tree.children[parent]).index(node)))
    return paths[1:]


@pytest.mark.parametrize("paths", [((0, 0),), ((1,),), ((0,), (0,)), ((),), ((-1,),)])
def test_impossible_paths_are_refused(paths: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="path"):
        Paths(paths)


def test_best_first_keeps_the_likeliest() -> None:
    probs = table()
    tree = grow(BestFirst(3, 3, 5), Rng(0), probs)
    scores = {(): 1.0}
    for _ in range(3):
        scores |= {
            (*p, t): s * float(probs[p[-1] if p else 0, t])
            for p, s in list(scores.items())
            for t in range(6)
        }
    best = sorted((p for p in scores if p), key=lambda p: -scores[p])[:5]
    assert {tuple(tree.token_list[n] for n in tree.path_to(node)) for node in range(1, 6)} == set(
        best
    )


def yield_of(paths: list[tuple[int, ...]], acceptance: tuple[float, ...]) -> float:
    return 1 + sum(prod(acceptance[rank] for rank in path) for path in paths)


def every_tree(budget: int, ranks: int, depth: int) -> set[frozenset[tuple[int, ...]]]:
    trees = {frozenset()}
    for _ in range(budget):
        bigger = set()
        for tree in trees:
            for path in [(), *tree]:
                rank = sum(
                    1 for other in tree if other[:-1] == path and len(other) == len(path) + 1
                )
                if rank < ranks and len(path) < depth:
                    bigger.add(tree | {(*path, rank)})
        trees = bigger
    return trees


@pytest.mark.parametrize("acceptance", [(0.7, 0.1), (0.4, 0.3, 0.2), (0.5, 0.05, 0.04)])
@pytest.mark.parametrize("depth", [2, 4])
def test_sequoia_plans_the_best_tree(acceptance: tuple[float, ...], depth: int) -> None:
    best = max(yield_of(sorted(tree), acceptance) for tree in every_tree(5, len(acceptance), depth))
    assert yield_of(plan(acceptance, 5, depth), acceptance) == pytest.approx(best)


def test_sequoia_plans_the_largest_tree_and_chain_at_once() -> None:
    began = process_time()
    tree = Sequoia(budget=256, max_depth=256)
    chain = Sequoia((0.6,), budget=256, max_depth=256)
    assert (tree.nodes, chain.nodes, chain.depth) == (256, 256, 256)
    assert tree.depth < 20  # levels below it bring nothing
    assert process_time() - began < 20


def test_sequoia_weighs_costs() -> None:
    assert len(plan((0.6, 0.2), 12, 5, target_cost=[1.0] * 4 + [9.0] * 9)) == 3
    assert max(map(len, plan((0.6, 0.2), 12, 5, draft_cost=0.5, target_cost=[1.0] * 13))) < 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: Widths(()),
        lambda: Widths((2, 0)),
        lambda: Widths((2,), "greedy-plus-one", budget=1),
        lambda: Independent(0, 3),
        lambda: StochasticBeam(2, -1),
        lambda: BestFirst(0, 1, 1),
        lambda: Sequoia(()),
        lambda: Sequoia((0.9, 0.9)),
        lambda: Sequoia(target_cost=(1.0,)),
        lambda: Sequoia((float("nan"),)),
        lambda: Sequoia(target_cost=(0.0,) * 17),
        lambda: Sequoia(target_cost=(1.0,) * 17, draft_cost=-1.0),
        lambda: Sequoia(draft_cost=0.01),
        lambda: Widths((2, 1), budget=-3),
        lambda: Widths((2,), "foo"),  # type: ignore[arg-type]
        lambda: StochasticBeam(2, 2, budget=-4),
        lambda: Independent(2, 2, budget=0),
        lambda: Paths(budget=-2),
    ],
)
def test_impossible_settings_are_refused(make) -> None:
    with pytest.raises(ValueError, match=r"must|budget|draw|need"):
        make()


def test_without_noise_trees_are_the_likeliest() -> None:
    probs = table()
    for shape in (
        *(Widths((2, 1)), StochasticBeam(2, 2), Sequoia((0.5, 0.2), budget=4, max_depth=2)),
        *(Widths((2, 2), "independent"), Independent(2, 2)),
    ):
        trees = [grow(shape, Rng(seed, noise=False), probs) for seed in range(3)]
        assert len({tuple(tree.token_list) for tree in trees}) == 1
        assert trees[0].token_list[1] == int(probs[0].argmax())
        for children in trees[0].children:  # a copy of a sibling would bring nothing
            tokens = [trees[0].token_list[child] for child in children]
            assert len({*tokens}) == len(tokens)


def test_a_vocabulary_smaller_than_the_tree() -> None:
    probs = torch.full((2, 2), 0.5)
    for shape in (
        Widths((5,)),
        StochasticBeam(5, 2),
        BestFirst(2, 5, 30),
        Sequoia(budget=8, max_depth=1),
        Paths(),
        Paths(((0,), (1,), (2,), (0, 0), (1, 0), (1, 1), (2, 0), (1, 1, 0))),
    ):
        tree = grow(shape, Rng(0), probs)
        assert set(tree.token_list) <= {0, 1}
        children = list(zip(tree.parent_list, tree.token_list, strict=True))[1:]
        assert shape.draw == "independent" or len({*children}) == len(children)
    assert tree.parent_list == [-1, 0, 0, 1, 2, 2, 5]  # what lies below no token is left out too
