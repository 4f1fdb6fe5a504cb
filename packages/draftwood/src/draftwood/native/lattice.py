"""Searches for trees of what frames say, in C++; see lattice.h."""

import numpy as np

from draftwood.native import library, structures

MOST_DEEP = 1 << 30


def likeliest_prefixes(
    probs: np.ndarray, has_blank: bool, merges: bool, nodes: int, max_draft_len: int
) -> tuple[list[int], list[int]]:
    """Find the tree of the most probable prefixes; see ``heads.prefix_search``.

    Args:
        probs: of each symbol in each frame, [frames symbols] in float32, all of them numbers.
        has_blank: whether the last symbol is a blank.
        merges: whether equal neighbours merge and blanks are dropped; else frame d says the token
            at depth d, and a blank ends the text.

    Returns:
        Tokens and parents of the nodes, without the root, which is node 0.
    """
    tree = _room(nodes, max_draft_len)
    lattice = _lattice(probs, has_blank, merges)
    library.library().draftwood_likeliest_prefixes(lattice, tree)
    return _found(tree)


def collapsed_alignments(
    probs: np.ndarray, nodes: int, ranks: int, alignments: int, max_draft_len: int
) -> tuple[list[int], list[int]]:
    """Find the tree of the most probable raw paths, each collapsed; arguments and result as above.

    Args:
        ranks: symbols of each frame that are combined.
        alignments: raw paths that are looked at, at most.
    """
    tree = _room(nodes, max_draft_len)
    lattice = _lattice(probs, has_blank=True, merges=True)
    library.library().draftwood_collapsed_alignments(lattice, ranks, alignments, tree)
    return _found(tree)


def collapsed_paths(
    probs: np.ndarray, parents: list[int], ranks: list[int], nodes: int, max_draft_len: int
) -> tuple[list[int], list[int]]:
    """Find the tree of a fixed list of raw paths, each collapsed; arguments and result as above.

    Args:
        parents: of each path, the number of the path without its last frame; -1 for none.
        ranks: of each path in its last frame, the likeliest symbol being 0.
    """
    tree = _room(nodes, max_draft_len)
    lattice = _lattice(probs, has_blank=True, merges=True)
    given = library.integers(parents), library.integers(ranks)
    library.library().draftwood_collapsed_paths(lattice, len(ranks), *given, tree)
    return _found(tree)


def _lattice(probs: np.ndarray, has_blank: bool, merges: bool) -> structures.CLattice:
    probs = np.ascontiguousarray(probs, np.float32)
    lattice = structures.CLattice(probs.ctypes.data, *probs.shape, has_blank, merges)
    lattice.kept = probs  # in memory as long as the structure
    return lattice


def _room(nodes: int, max_draft_len: int) -> structures.CLatticeTree:
    tokens, parents = library.integers([0] * (1 + nodes)), library.integers([0] * (1 + nodes))
    return structures.CLatticeTree(nodes, min(max_draft_len, MOST_DEEP), tokens, parents)


def _found(tree: structures.CLatticeTree) -> tuple[list[int], list[int]]:
    return tree.tokens[1 : 1 + tree.nodes], tree.parents[1 : 1 + tree.nodes]
