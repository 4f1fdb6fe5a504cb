"""Recursions over frames agree with the list of all alignments."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from draftwood.heads.lattice import Chain, Lattice, Pairs, Prefix, Unmerged
from draftwood.heads.prefix_search import (
    RELEASED,
    collapsed_alignments,
    likeliest_prefixes,
    released_paths,
)
from draftwood.tree import DraftTree
from draftwood_torch.heads.layers import PairwiseTerm
from reference import prefix_search
from reference.prefix_search import collapsed

TOLERANCE = 1e-9


def frames(count: int, symbols: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return (torch.randn(count, symbols, generator=rng, dtype=torch.float64) * 1.5).softmax(-1)


def with_zeros(count: int, symbols: int) -> torch.Tensor:
    """Frames that cannot say this or that; one is sure."""
    probs = frames(count, symbols, 5)
    probs[0, 0] = 0.0
    probs[1] = torch.eye(symbols, dtype=torch.float64)[-1]
    return probs / probs.sum(-1, keepdim=True)


CASES = [
    pytest.param(frames(count, symbols, seed), id=f"{count} frames, {symbols} symbols, {seed}")
    for count, symbols, seed in ((1, 3, 0), (2, 2, 1), (3, 4, 2), (5, 3, 3), (4, 3, 4), (6, 2, 5))
] + [pytest.param(with_zeros(4, 3), id="zeros")]


def enumerated(probs: torch.Tensor) -> dict[tuple[int, ...], float]:
    """Chance of every text, from the list of all alignments."""
    law: dict[tuple[int, ...], float] = {}
    count, symbols = probs.shape
    for alignment in product(range(symbols), repeat=count):
        chance = float(probs[range(count), list(alignment)].prod())
        text = collapsed(alignment, symbols - 1)
        law[text] = law.get(text, 0.0) + chance
    return law


def texts_of(probs: torch.Tensor, longest: int) -> Iterator[tuple[int, ...]]:
    for length in range(longest + 1):
        yield from product(range(probs.shape[-1] - 1), repeat=length)


def read(lattice: Lattice, text: tuple[int, ...]) -> Prefix:
    prefix = lattice.start()
    for token in text:
        prefix = lattice.extended(prefix, token)
    return prefix


def largest_error(probs: torch.Tensor, lattice: Lattice) -> float:
    """Between recursions and list, over all prefixes, ends and rows."""
    law = enumerated(probs)
    pre: dict[tuple[int, ...], float] = {}
    for text, chance in law.items():
        for end in range(len(text) + 1):
            pre[text[:end]] = pre.get(text[:end], 0.0) + chance
    errors = [0.0]
    for text in texts_of(probs, min(len(probs), 3) + 1):
        prefix = read(lattice, text)
        errors.append(abs(prefix.chance - pre.get(text, 0.0)))
        errors.append(abs(prefix.ends - law.get(text, 0.0)))
        for token, chance in enumerate(lattice.rows([prefix])[0].tolist()):
            errors.append(abs(chance - pre.get((*text, token), 0.0)))
    return max(errors)


class Forgetful(Lattice):
    """A wrong recursion: a token may come again with no blank between."""

    def extended(self, prefix: Prefix, token: int) -> Prefix:
        longer = super().extended(prefix, token)
        return replace(longer, repeats=longer.weights)


class Late(Lattice):
    """A wrong recursion: what follows may begin in the very frame that ends the prefix."""

    def extended(self, prefix: Prefix, token: int) -> Prefix:
        longer = super().extended(prefix, token)
        return replace(longer, weights=(*longer.weights[1:], longer.ends))


@pytest.mark.parametrize("probs", CASES)
def test_prefixes_ends_and_rows_equal_the_list_of_alignments(probs: torch.Tensor) -> None:
    assert largest_error(probs, Lattice(probs)) < TOLERANCE


@pytest.mark.parametrize("wrong", [Forgetful, Late])
def test_a_wrong_recursion_is_found(wrong: type[Lattice]) -> None:
    probs = frames(4, 3)
    assert largest_error(probs, wrong(probs)) > 1e-3


MOVED = [frames(3, 4, 2), frames(5, 3, 3), frames(4, 3, 4)]


@pytest.mark.parametrize("by", [1, 2])
@pytest.mark.parametrize("probs", MOVED)
def test_a_blank_in_another_place_is_found(probs: torch.Tensor, by: int) -> None:
    """With every reader of frames: the blank is the last symbol, neither the first nor another."""
    moved = probs.roll(by, -1)
    assert largest_error(probs, Lattice(moved)) > 1e-2

    ends = [Unmerged(given, has_blank=True).start().ends for given in (probs, moved)]
    assert ends[0] == float(probs[0, -1]) != ends[1]


@pytest.mark.parametrize("place", [0, 1, 3])
def test_frames_that_are_sure_of_the_blank_say_nothing(place: int) -> None:
    """And what they say with another symbol for sure is that symbol, once."""
    sure = torch.full((3, 4), 1e-9, dtype=torch.float64)
    sure[:, place] = 1.0
    wanted = [-1] if place == 3 else [-1, place]
    assert likeliest_prefixes(Lattice(sure), 1).token_list[: len(wanted)] == wanted
    assert read(Lattice(sure), ()).ends == pytest.approx(float(place == 3), abs=1e-6)
    assert collapsed_alignments(sure, 1, 1, 1).token_list == wanted
    assert Unmerged(sure, has_blank=True).start().ends == pytest.approx(float(sure[0, 3]))


@pytest.mark.parametrize("probs", CASES)
def test_what_follows_and_the_end_make_up_each_prefix(probs: torch.Tensor) -> None:
    lattice = Lattice(probs)
    for text in texts_of(probs, 3):
        prefix = read(lattice, text)
        total = float(lattice.rows([prefix]).sum()) + prefix.ends
        assert abs(total - prefix.chance) < TOLERANCE


@pytest.mark.parametrize("probs", CASES)
def test_several_prefixes_at_once_are_those_one_by_one(probs: torch.Tensor) -> None:
    lattice = Lattice(probs)
    prefixes = [read(lattice, text) for text in texts_of(probs, 2)]
    single = np.concatenate([lattice.rows([prefix]) for prefix in prefixes])
    np.testing.assert_allclose(lattice.rows(prefixes), single, atol=1e-12, rtol=0)


def test_without_merging_depth_is_the_frame() -> None:
    probs = frames(3, 4)
    for has_blank, tokens in ((False, probs), (True, probs[:, :-1])):
        reads = Unmerged(probs, has_blank)
        prefix = reads.start()
        chance = 1.0
        for depth, token in enumerate((1, 1, 2)):
            np.testing.assert_allclose(reads.rows([prefix])[0], chance * tokens[depth].numpy())
            wanted = chance * float(probs[depth, -1]) if has_blank else 0.0
            assert prefix.ends == pytest.approx(wanted)
            prefix = reads.extended(prefix, token)
            chance *= float(tokens[depth, token])
            assert prefix.chance == pytest.approx(chance)
        assert prefix.ends == pytest.approx(chance)
        assert float(reads.rows([prefix]).sum()) == 0.0
        assert reads.extended(prefix, 0).chance == 0.0


@pytest.mark.parametrize("max_draft_len", [1, 2, 9])
@pytest.mark.parametrize("probs", CASES)
def test_the_search_finds_the_likeliest_prefixes(probs: torch.Tensor, max_draft_len: int) -> None:
    lattice = Lattice(probs)
    every = [
        read(lattice, text).chance
        for text in texts_of(probs, min(max_draft_len, len(probs)))
        if text
    ]
    wanted = sorted((chance for chance in every if chance > 0.0), reverse=True)[:6]
    tree = likeliest_prefixes(lattice, 6, root=7, max_draft_len=max_draft_len)
    assert tree.token_list[0] == 7
    assert tree.depth <= max_draft_len
    paths = [tuple(tree.token_list[n] for n in tree.path_to(node)) for node in range(1, len(tree))]
    assert len(set(paths)) == len(paths)
    found = sorted((read(lattice, path).chance for path in paths), reverse=True)
    assert found == pytest.approx(wanted, abs=1e-12)


def test_collapsing_merges_neighbours_before_it_drops_blanks() -> None:
    assert collapsed((0, 0, 2, 0, 1, 1), blank=2) == (0, 0, 1)
    assert collapsed((2, 2), blank=2) == ()
    assert collapsed((1, 2, 2, 1), blank=2) == (1, 1)


def raw_paths(probs: torch.Tensor) -> list[tuple[float, tuple[int, ...]]]:
    """Chances of all beginnings of alignments, the likeliest first."""
    found = [
        (float(probs[range(length), list(path)].prod()), path)
        for length in range(1, len(probs) + 1)
        for path in product(range(probs.shape[-1]), repeat=length)
    ]
    return sorted(found, key=lambda each: (-each[0], len(each[1])))


def paths_of(tree: DraftTree) -> set[tuple[int, ...]]:
    paths = {tuple(tree.token_list[n] for n in tree.path_to(node)) for node in range(1, len(tree))}
    assert len(paths) == len(tree) - 1  # of one text there is one node
    return paths


@pytest.mark.parametrize("probs", CASES)
def test_collapsed_alignments_are_those_of_the_likeliest_raw_paths(probs: torch.Tensor) -> None:
    """Told from the list of all: the tree holds the texts of the likeliest, as many as asked."""
    symbols = probs.shape[-1]
    every = [(chance, path) for chance, path in raw_paths(probs) if chance > 0.0]
    for tried in (1, 5, len(every)):
        wanted = {collapsed(path, symbols - 1) for _, path in every[:tried]} - {()}
        assert paths_of(collapsed_alignments(probs, 999, symbols, tried)) == wanted
    texts = list(dict.fromkeys(collapsed(path, symbols - 1) for _, path in every))
    texts.remove(())
    for nodes in (1, 2, 4):
        assert paths_of(collapsed_alignments(probs, nodes, symbols, 999)) == set(texts[:nodes])
    small = collapsed_alignments(probs, 2, 2, 99, max_draft_len=1)
    assert len(small) <= 3
    assert small.depth <= 1


def test_a_collapsed_tree_is_as_wide_as_frames_are_unsure() -> None:
    """Whole alignments would make a chain of it."""
    torch.manual_seed(0)
    probs = (torch.randn(8, 40) * 2).softmax(-1)
    for nodes in (8, 16, 63):
        tree = collapsed_alignments(probs, nodes, 10, 4096)
        assert len(tree) == nodes + 1
        assert len(tree.children[0]) >= min(nodes // 4, 8)
        prefixes = likeliest_prefixes(Lattice(probs), nodes)
        assert len(prefixes) == len(tree)


def test_released_paths_are_medusas_tree_of_63_collapsed() -> None:
    lengths = [len(path) for path in RELEASED]
    assert [lengths.count(length) for length in (1, 2, 3, 4)] == [10, 28, 23, 2]
    probs = frames(5, 12)
    ranked = probs.argsort(-1, descending=True).tolist()
    raw = [tuple(ranked[n][int(rank)] for n, rank in enumerate(path)) for path in RELEASED]
    assert paths_of(released_paths(probs)) == {collapsed(path, 11) for path in raw} - {()}
    # the root's children are those that its raw children say, or their children behind a blank
    assert len(released_paths(probs)) < 64  # some fell together
    assert len(released_paths(probs, 8)) == 9


def form(tree: DraftTree) -> tuple[list[int], list[int]]:
    return tree.token_list, tree.parent_list


@pytest.mark.parametrize("symbols", [3, 17, 300])
@pytest.mark.parametrize("count", [1, 4, 9])
def test_the_librarys_trees_are_those_of_python(count: int, symbols: int) -> None:
    """Lattices, raw frames with a blank and without, and alignments."""
    differ = 0
    for seed in range(20):
        probs = frames(count, symbols, seed).float()
        reads = (Lattice(probs), Unmerged(probs, True), Unmerged(probs, False))
        for nodes, depth in ((1, 9), (8, 9), (40, 3), (6, 1)):
            trees = [likeliest_prefixes(each, nodes, 5, depth) for each in reads]
            for each, tree in zip(reads, trees, strict=True):
                wanted = prefix_search.likeliest_prefixes(each, nodes, 5, depth)
                assert form(tree) == form(wanted)
            differ += form(trees[0]) != form(trees[1])
            given = (probs, nodes, 4, 64, 5, depth)
            wanted = prefix_search.collapsed_alignments(*given)
            assert form(collapsed_alignments(*given)) == form(wanted)
            raw = [tuple(map(int, path)) for path in RELEASED]
            wanted = prefix_search.collapsed_paths(probs, raw, nodes, 5, depth)
            assert form(released_paths(probs, nodes, 5, depth)) == form(wanted)
    assert differ or count == 1  # the readings are not the same


def test_trees_of_a_chain_are_those_of_its_law() -> None:
    torch.manual_seed(0)
    pairs = Pairs(*torch.randn(2, 20, 4).numpy())
    nothing = Pairs(pairs.before, np.zeros_like(pairs.after))
    differ = 0
    for seed in range(20):
        probs = frames(5, 20, seed).float()
        chain, alone = Chain(probs.log(), pairs, 6), Unmerged(probs, False)
        same = likeliest_prefixes(Chain(probs.log(), nothing, 9), 8, 5)
        assert form(same) == form(likeliest_prefixes(alone, 8, 5))
        for nodes, depth in ((1, 9), (8, 9), (40, 3), (6, 1)):
            tree = likeliest_prefixes(chain, nodes, 5, depth)
            assert form(tree) == form(prefix_search.likeliest_prefixes(chain, nodes, 5, depth))
            differ += form(tree) != form(likeliest_prefixes(alone, nodes, 5, depth))
    assert differ  # the term decides


def test_a_pairwise_term_says_of_pairs_what_it_adds_to_states() -> None:
    torch.manual_seed(1)
    term, embedded, head, state = PairwiseTerm(8, 3), *torch.randn(2, 11, 8), torch.randn(8)
    assert not term(embedded).any()  # it begins as zero
    torch.nn.init.normal_(term.after_proj.weight)
    pairs = term.pairs(embedded, lambda states: states @ head.T)
    found = torch.from_numpy(pairs.between(np.array([2, 5]), np.arange(11)))
    wanted = (state + term(embedded[[2, 5]])) @ head.T - state @ head.T
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("wrong", [Forgetful, Late])
def test_trees_of_a_wrong_recursion_are_others(wrong: type[Lattice]) -> None:
    others = 0
    for seed in range(20):
        probs = frames(5, 4, seed).float()
        tree = prefix_search.likeliest_prefixes(wrong(probs), 12)
        others += form(tree) != form(likeliest_prefixes(Lattice(probs), 12))
    assert others
