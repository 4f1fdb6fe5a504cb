"""Contract of shapes, and helpers that grow trees.

A shape grows a tree by asking ``expand(tree, first)`` for the distribution after each node from
``first`` on. It draws from exactly those probabilities and stores exactly those. Which children
exist may depend on counts, on perturbed values and on other branches, never on a drawn child's
identity, or the output distribution changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from draftwood.arrays import Float, address_of, as_array
from draftwood.native.logit_rows import Children, LogitRow, LogitRows, children_of
from draftwood.native.rows import topk
from draftwood.rng import Rng
from draftwood.shapes.shape import Shape, takes_logits
from draftwood.tree import UNBOUNDED, DraftTree, Draw
from draftwood.validation import positive

RowsAfter = Float[np.ndarray, "_ vocab"] | LogitRows
ExpandLogits = Callable[[DraftTree, int], RowsAfter]
"""``Expand`` where rows may stay logits; see ``takes_logits``."""

Picked = tuple[list[int], list[int]]
Pick = Callable[[int, RowsAfter], Picked]


class SoundRows:
    """Rows to draw from, with rows of NaN made uniform.

    A tree may not end where a drawn token led to such a row, or the text's distribution would
    change. So its children are drawn from a uniform row, which the tree states as any other.

    Attributes:
        is_broken: whether there was such a row.
    """

    def __init__(self) -> None:
        self.is_broken = False

    def __call__(self, probs: Float[np.ndarray, "rows vocab"]) -> Float[np.ndarray, "rows vocab"]:
        """Replace rows of NaN by uniform ones; a sampler's row holds no NaN or nothing else."""
        odd = np.isnan(probs[:, 0])
        if not odd.any():
            return probs
        self.is_broken, probs = True, probs.copy()
        probs[odd] = 1.0 / probs.shape[-1]
        return probs


def as_probs(rows: RowsAfter) -> Float[np.ndarray, "rows vocab"]:
    """The rows as arrays."""
    return rows.probs() if isinstance(rows, LogitRows) else rows


def likeliest(rows: RowsAfter, count: int) -> Children:
    """The ``count`` likeliest tokens of each row, in falling order; all of a row with fewer."""
    count = min(count, rows.shape[-1])
    if isinstance(rows, LogitRows):
        return rows.likeliest(count)
    return children_of(rows, topk(rows, count))


def grow_sound(
    shape: Shape, root: int, expand: ExpandLogits, rng: Rng, max_draft_len: int = UNBOUNDED
) -> DraftTree:
    """Grow a shape's tree even if ``expand`` gives NaN; see ``SoundRows``."""
    sound, keeps = SoundRows(), takes_logits(shape)

    def given(tree: DraftTree, first: int) -> Any:
        rows = expand(tree, first)
        if not isinstance(rows, LogitRows):
            return sound(as_array(rows))
        sound.is_broken = rows.is_broken or sound.is_broken  # and uniform there
        return rows if keeps else rows.probs()

    tree = shape.grow(root, given, rng, max_draft_len)
    return replace(tree, is_broken=True) if sound.is_broken else tree


def grow_by_levels(
    root: int, expand: ExpandLogits, depth: int, pick: Pick, draw: Draw, budget: int | None
) -> DraftTree:
    """Grow a tree one level at a time, each level with one call of ``expand``.

    Args:
        depth: levels to grow.
        pick: given the level and the distributions after its nodes, the tokens of the next level
            and for each the position of its parent within the level, in drawing order.
        budget: most nodes to draft; a level that would exceed it is cut by position, which looks at
            no token.
    """
    tree, first, rows = DraftTree.of([root], [-1]), 0, list[RowsAfter]()
    for level in range(depth):
        max_draft_len = len(tree) - first if budget is None else budget + 1 - len(tree)
        if max_draft_len <= 0:
            break
        found = as_array(expand(tree, first))
        tokens, parents = pick(level, found)
        if budget is not None:
            tokens, parents = tokens[:max_draft_len], parents[:max_draft_len]
        rows.append(found)
        tree, first = longer(tree, tokens, parents, first), len(tree)
        if len(tree) == first:
            break
    return tree if draw == "chosen" else with_rows(tree, rows, draw)


def longer(tree: DraftTree, tokens: Sequence[int], parents: Sequence[int], first: int) -> DraftTree:
    """The tree with another level below it.

    Args:
        tokens: of the new nodes.
        parents: of each its parent's position among the nodes from ``first`` on.
    """
    above = [*tree.parent_list, *(parent + first for parent in parents)]
    return DraftTree.of([*tree.token_list, *tokens], above)


def with_rows(tree: DraftTree, rows: Sequence[RowsAfter], draw: Draw) -> DraftTree:
    """The tree with the rows that its siblings were drawn from, level by level."""
    logits = [each for each in rows if isinstance(each, LogitRows)]
    if logits and len(logits) == len(rows):
        own: list[LogitRow] = [row for each in logits for row in each.each()]
        return DraftTree.of(tree.token_list, tree.parent_list, draw, rows=own)
    probs = [as_probs(each) for each in rows]
    return replace(tree, probs=joined(probs) if probs else None, draw=draw)


def joined(blocks: Sequence[Float[np.ndarray, "_ vocab"]]) -> Float[np.ndarray, "rows vocab"]:
    """Join the rows of all blocks, without a copy if blocks are adjacent in memory."""
    first, end = blocks[0], address_of(blocks[0])
    for block in blocks:
        shared = block is first or (block.base is not None and block.base is first.base)
        if not (shared and block.flags.c_contiguous and address_of(block) == end):
            return np.concatenate(blocks)
        end += block.nbytes
    shape = sum(map(len, blocks)), first.shape[1]
    return np.lib.stride_tricks.as_strided(first, shape, first.strides)


def require_budget(budget: int | None) -> None:
    """Raise ValueError for a budget that is not above 0; None is no budget."""
    if budget is not None:
        positive("budget", (budget,))


def within(budget: int | None) -> str:
    """Part of a label that names a budget."""
    return "" if budget is None else f", budget {budget}"


@dataclass(frozen=True)
class Level:
    """One level of a fixed tree: each node's parent and its rank among the parent's children.

    A parent is named by its position in the level above.
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    def pick(self, above: list[int | None], ranked: Sequence[Sequence[int]]) -> Picked:
        """Pick tokens for the level's nodes, as far as rows have their ranks.

        Args:
            above: positions of the planned nodes of the level above among those that are there,
                None for others; becomes the positions of this level's.
            ranked: tokens of each that is there, by rank.
        """
        own, tokens, parents = list[int | None](), list[int](), list[int]()
        for planned, rank in zip(self.parents, self.ranks, strict=True):
            node = above[planned]
            if node is None or rank >= len(ranked[node]):
                own.append(None)
                continue
            own.append(len(tokens))
            tokens.append(ranked[node][rank])
            parents.append(node)
        above[:] = own
        return tokens, parents


def levels_of(paths: Sequence[Sequence[int]]) -> list[Level]:
    """Levels of a tree given by rank paths.

    (0, 2) is the third child of the root's first child.

    Raises:
        ValueError: if a path's parent or an earlier sibling is missing, or a path is given twice.
    """
    known = {tuple(path) for path in paths}
    if len(known) != len(paths) or () in known:
        raise ValueError("paths must be different from each other and not empty")
    for path in known:
        elder = path[:-1] + (path[-1] - 1,)
        if (
            (path[:-1] and path[:-1] not in known)
            or (path[-1] > 0 and elder not in known)
            or path[-1] < 0
        ):
            raise ValueError(f"path {path} needs its parent and its elder siblings among the paths")
    levels: list[Level] = []
    above: dict[tuple[int, ...], int] = {(): 0}
    for depth in range(1, max(map(len, known), default=0) + 1):
        here = sorted(path for path in known if len(path) == depth)
        levels.append(
            Level(tuple(above[path[:-1]] for path in here), tuple(path[-1] for path in here))
        )
        above = {path: place for place, path in enumerate(here)}
    return levels
