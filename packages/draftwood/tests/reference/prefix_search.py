"""Trees of frames in Python, which judge those of the library."""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import count, islice

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.heads.lattice import Frames
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
            row = torch.from_numpy(frames.rows([prefixes[node]])[0])
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
    """Tree of the most probable raw paths, each collapsed (Wen et al. 2024).

    Args:
        probs: of each symbol in each frame; the blank is the last symbol.
        alignments: raw paths that are looked at, at most.
    """
    grown = Grown(probs.shape[-1] - 1, nodes, root, max_draft_len)
    for path in islice(_likeliest_paths(probs, ranks), alignments):
        if not grown.takes(path):
            break
    return grown.tree()


def collapsed_paths(
    probs: Float[Tensor, "frames symbols"],
    paths: Sequence[tuple[int, ...]],
    nodes: int,
    root: int = -1,
    max_draft_len: int = UNBOUNDED,
) -> DraftTree:
    """Tree of fixed raw paths of ranks, each collapsed."""
    ranked = probs.topk(min(1 + max(map(max, paths)), probs.shape[-1]), dim=-1).indices.tolist()
    grown = Grown(probs.shape[-1] - 1, nodes, root, max_draft_len)
    for path in paths:
        if len(path) <= len(ranked) and max(path) < len(ranked[0]):
            grown.takes([ranked[frame][rank] for frame, rank in enumerate(path)])
    return grown.tree()


class Grown:
    """A tree of texts, which raw paths fill."""

    def __init__(self, blank: int, nodes: int, root: int, max_draft_len: int) -> None:
        self.blank, self.nodes, self.longest = blank, nodes, max_draft_len
        self.tokens, self.parents = [root], [-1]
        self.known: dict[tuple[int, ...], int] = {(): 0}

    def takes(self, path: Sequence[int]) -> bool:
        """True where the tree holds the path's text, which it may have room for."""
        text = collapsed(path, self.blank)[: self.longest]
        for end in range(1, len(text) + 1):
            if text[:end] in self.known:
                continue
            if len(self.tokens) > self.nodes:
                return False
            self.parents.append(self.known[text[: end - 1]])
            self.known[text[:end]] = len(self.tokens)
            self.tokens.append(text[end - 1])
        return True

    def tree(self) -> DraftTree:
        return DraftTree.of(self.tokens, self.parents)


def _likeliest_paths(
    probs: Float[Tensor, "frames symbols"], ranks: int
) -> Iterator[tuple[int, ...]]:
    """Beginnings of alignments by falling probability; of equal ones the earlier found first."""
    best = probs.topk(min(ranks, probs.shape[-1]), dim=-1)
    chances, symbols = best.values.tolist(), best.indices.tolist()
    numbers = count()
    waiting: list[tuple[float, int, float, tuple[int, ...], int]] = []

    def wait(before: float, path: tuple[int, ...], rank: int) -> None:
        frame = len(path)
        if frame < len(chances) and rank < len(chances[0]) and chances[frame][rank] > 0.0:
            chance = before * chances[frame][rank]
            heappush(waiting, (-chance, next(numbers), before, path, rank))

    wait(1.0, (), 0)
    while waiting:
        negative, _, before, path, rank = heappop(waiting)
        longer = (*path, symbols[len(path)][rank])
        yield longer
        wait(-negative, longer, 0)
        wait(before, path, rank + 1)


def collapsed(symbols: Sequence[int], blank: int) -> tuple[int, ...]:
    """Collapse an alignment: merge equal neighbours, then drop blanks."""
    kept = [
        symbol for place, symbol in enumerate(symbols) if not place or symbol != symbols[place - 1]
    ]
    return tuple(symbol for symbol in kept if symbol != blank)
