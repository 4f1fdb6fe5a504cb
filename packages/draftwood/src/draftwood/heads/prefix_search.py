"""Trees of frames: the most probable prefixes, or the most probable alignments collapsed.

The library searches, in 32 bits.
"""

import numpy as np

from draftwood.arrays import as_array
from draftwood.heads.lattice import Chain, FrameRows, Frames
from draftwood.native import lattice
from draftwood.tree import UNBOUNDED, DraftTree


def likeliest_prefixes(
    frames: Frames, nodes: int, root: int = -1, max_draft_len: int = UNBOUNDED
) -> DraftTree:
    """Tree of the ``nodes`` most probable prefixes.

    A prefix is never more probable than its own prefixes, so the tree grows by the most probable
    continuation. No collapse is needed, as a prefix sums over all its alignments.

    Args:
        root: token of the root; others are places in the draft vocabulary.
        max_draft_len: most tokens in a row.
    """
    if isinstance(frames, Chain):
        return _below(root, *frames.likeliest(nodes, max_draft_len))
    probs = _in_memory(frames.probs)
    found = lattice.likeliest_prefixes(probs, frames.has_blank, frames.merges, nodes, max_draft_len)
    return _below(root, *found)


def collapsed_alignments(
    probs: FrameRows,
    nodes: int,
    ranks: int,
    alignments: int,
    root: int = -1,
    max_draft_len: int = UNBOUNDED,
) -> DraftTree:
    """Tree of the most probable raw paths, each collapsed (Wen et al. 2024, arXiv:2412.00061).

    A raw path takes one of the ``ranks`` likeliest symbols of each frame from the first on, as a
    node of Medusa's tree does. Paths are taken by falling probability until the tree is full;
    equal neighbours are merged and blanks dropped, and paths with the same text share its nodes.
    Frame 1 is never compared with the root.

    The paper takes a fixed list of ranks, as ``released_paths`` does. Here the frames' own
    probabilities order the paths, and trees are compared at equal nodes once they are collapsed.

    Args:
        probs: of each symbol in each frame; the blank is the last symbol.
        alignments: raw paths that are looked at, at most.
    """
    found = lattice.collapsed_alignments(_in_memory(probs), nodes, ranks, alignments, max_draft_len)
    return _below(root, *found)


RELEASED = (
    "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003"
    " 40 21 004 005 0000 011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021"
    " 90 060 0001 16 070"
).split()
"""Ranks of each node of Medusa's tree of 63, which the code released with CTC-drafter drafts."""


def released_paths(
    probs: FrameRows,
    nodes: int = len(RELEASED),
    root: int = -1,
    max_draft_len: int = UNBOUNDED,
) -> DraftTree:
    """Tree of the released code's fixed raw paths, each collapsed.

    A node takes its rank of its frame whatever is above it, as there. Positions follow from the
    collapsed tree; there they stay those of the raw one.

    Args:
        probs: of each symbol in each frame; the blank is the last symbol.
        nodes: most of them; further paths add none.
    """
    places = {path: place for place, path in enumerate(RELEASED)}
    parents = [places.get(path[:-1], -1) for path in RELEASED]
    ranks = [int(path[-1]) for path in RELEASED]
    found = lattice.collapsed_paths(_in_memory(probs), parents, ranks, nodes, max_draft_len)
    return _below(root, *found)


def _in_memory(probs: FrameRows) -> np.ndarray:
    return as_array(probs).astype(np.float32, copy=False)


def _below(root: int, tokens: list[int], parents: list[int]) -> DraftTree:
    return DraftTree.of([root, *tokens], [-1, *parents])
