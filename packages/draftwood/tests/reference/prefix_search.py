"""Trees of frames in Python, which judge those of the library."""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from math import prod

from jaxtyping import Float
from torch import Tensor

from draftwood.heads.lattice import Frames, collapsed
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
    tokens, parents, depths = [root], [-1], [0]
    open_ends: list[tuple[float, int, int]] = []
    prefixes = [frames.start()]
    node = 0
    while True:
        left = nodes + 1 - len(tokens)
        if left > 0 and depths[node] < max_draft_len:
            row = frames.rows([prefixes[node]])[0]
            best = row.topk(min(left, len(row)))
            for chance, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                if chance > 0.0:
                    heappush(open_ends, (-chance, node, token))
        if left <= 0 or not open_ends:
            return DraftTree.of(tokens, parents)
        _, parent, token = heappop(open_ends)
        node = len(tokens)
        tokens.append(token)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        prefixes.append(frames.extended(prefixes[parent], token))


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
    best = probs.topk(min(ranks, probs.shape[-1]), dim=-1)
    chances, symbols = best.values.tolist(), best.indices.tolist()
    tokens, parents = [root], [-1]
    known: dict[tuple[int, ...], int] = {(): 0}
    for _, picked in zip(range(alignments), _products(chances), strict=False):
        said = [symbols[frame][rank] for frame, rank in enumerate(picked)]
        text = collapsed(said, probs.shape[-1] - 1)[:max_draft_len]
        for end in range(1, len(text) + 1):
            if text[:end] in known:
                continue
            if len(tokens) > nodes:
                return DraftTree.of(tokens, parents)
            parents.append(known[text[: end - 1]])
            known[text[:end]] = len(tokens)
            tokens.append(text[end - 1])
    return DraftTree.of(tokens, parents)


def _products(chances: Sequence[Sequence[float]]) -> Iterator[tuple[int, ...]]:
    """One rank of each frame, by falling product; of equal products the smaller ranks first.

    Each combination follows from the one whose last rank above 0 is one lower.
    """
    first = (0,) * len(chances)
    waiting: list[tuple[float, tuple[int, ...], int]] = []
    heappush(waiting, (-prod(row[0] for row in chances), first, 0))
    while waiting:
        _, ranks, last = heappop(waiting)
        yield ranks
        for frame in range(last, len(ranks)):
            rank = ranks[frame] + 1
            if rank < len(chances[frame]):
                longer = (*ranks[:frame], rank, *ranks[frame + 1 :])
                chance = prod(row[each] for row, each in zip(chances, longer, strict=True))
                heappush(waiting, (-chance, longer, frame))
