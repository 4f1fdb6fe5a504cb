"""Trees of frames: the most probable prefixes, or the most probable alignments collapsed.

The library searches, in 32 bits.
"""

import numpy as np
from jaxtyping import Float
from torch import Tensor

from draftwood.heads.lattice import Chain, Frames
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
    probs: Float[Tensor, "frames symbols"],
    nodes: int,
    ranks: int,
    alignments: int,
    root: int = -1,
    max_draft_len: int = UNBOUNDED,
) -> DraftTree:
    """Trie of the most probable alignments, each collapsed (Wen et al. 2024).

    Each frame contributes its ``ranks`` most probable symbols. Alignments are taken by falling
    probability, equal neighbours merged and blanks dropped. Alignments with the same text share a
    path. Frame 1 is never compared with the root.

    The paper takes a fixed list of ranks. Here the frames' own probabilities order the products.

    Args:
        probs: of each symbol in each frame; the blank is the last symbol.
        alignments: largest number of them that is tried.
    """
    found = lattice.collapsed_alignments(_in_memory(probs), nodes, ranks, alignments, max_draft_len)
    return _below(root, *found)


def _in_memory(probs: Float[Tensor, "frames symbols"]) -> np.ndarray:
    return probs.detach().cpu().float().numpy()


def _below(root: int, tokens: list[int], parents: list[int]) -> DraftTree:
    return DraftTree.of([root, *tokens], [-1, *parents])
