"""Draft trees: what every drafter returns and every verifier reads."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from operator import ge
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from draftwood.arrays import Bool, Float, Int, as_array

Draw = Literal["chosen", "coupled", "distinct", "independent", "greedy-plus-one", "named"]
"""Rule by which the children of a node were chosen or drawn, in their order.

* ``chosen``: by any rule at all, for instance the likeliest first; nothing is promised.
* ``coupled``: the same, with a look at the noise of the target's own draws
  (``Rng.exponential_noise``); a rule that spends this noise on anything but these draws changes the
  text's distribution.
* ``distinct``: drawn one after the other from the node's row of ``probs``, without replacement.
* ``independent``: drawn one after the other from the node's row of ``probs``, with replacement.
* ``greedy-plus-one``: the likeliest tokens of the row, then one drawn from what is left of it.
* ``named``: drawn one after the other, each from the row of ``probs`` that ``drawn_from`` names:
  its distribution given the siblings drawn before it.
"""


UNBOUNDED = sys.maxsize
"""Limit on draft tokens where nothing bounds them."""

FEW = 32
"""Nodes for which plain lists are faster than arrays."""


@runtime_checkable
class DrawnRow(Protocol):
    """A row that siblings were drawn from, in a form of its own."""

    def chance(self, token: int, /) -> float:
        """Probability of a token."""
        ...

    def array(self) -> Float[np.ndarray, " vocab"]:
        """All probabilities."""
        ...


@dataclass(frozen=True, eq=False)
class DraftTree:
    """Drafted continuations of a sequence, as flat arrays.

    Node 0 is the root: the newest token of the sequence, chosen but not yet in the KV cache. Every
    other node is a draft token and comes after its parent; siblings are in the order in which they
    were drawn. A chain is a tree with one branch, and a lone root is plain decoding.

    Attributes:
        tokens: token id of each node.
        parents: index of each node's parent, -1 for the root.
        probs: row i is the distribution the children of node i were drawn from. Nodes without a row
            are leaves, so the rows may stop at the last inner node. None where nothing was drawn.
            Of a tree with ``rows`` they are computed when they are first asked for.
        draw: how siblings were drawn; a verifier states the draws for which it keeps the target's
            distribution.
        drawn_from: for each node the row that it was drawn from, where siblings were drawn from
            rows of their own; of the root any. None where a node's row is its parent's.
        sources: for each node the names of what proposed it, where a drafter merges several; for
            reports alone.
        chances: of each node given its parent (1 for the root) in a tree that gave up its
            ``probs``; for reports alone.
        is_broken: whether the drafter gave NaN or infinity at some node, so that its next trees are
            not worth drafting.
        rows: the rows of ``probs`` in a form that gives single probabilities without the others;
            None where ``probs`` was given, or nothing was drawn.

    Raises:
        ValueError: if the root is not first, a node comes before its parent, or a ``named`` tree
            does not name the rows.
    """

    tokens: Int[np.ndarray, " nodes"]
    parents: Int[np.ndarray, " nodes"]
    probs: Float[np.ndarray, "inner vocab"] | None = field(default_factory=lambda: None)
    draw: Draw = "chosen"
    sources: tuple[tuple[str, ...], ...] | None = None
    chances: Float[np.ndarray, " nodes"] | None = None
    drawn_from: Int[np.ndarray, " nodes"] | None = None
    is_broken: bool = False
    rows: Sequence[DrawnRow] | None = None

    def __post_init__(self) -> None:
        lists = self.__dict__
        for name in ("tokens", "parents", "probs", "chances", "drawn_from"):
            lists[name] = as_array(lists[name])
        if lists["probs"] is not None:
            lists["rows"] = None
        elif self.rows is not None:
            del lists["probs"]
        if self.tokens.shape != self.parents.shape:
            raise ValueError(_unequal(len(self.tokens), len(self.parents)))
        _check_form(self.parent_list)
        if self.draw == "named" and lists["drawn_from"] is None and lists.get("probs") is not None:
            raise ValueError("the tree is named and names no rows; give drawn_from")

    @classmethod
    def of(
        cls,
        tokens: Sequence[int],
        parents: Sequence[int],
        draw: Draw = "chosen",
        sources: tuple[tuple[str, ...], ...] | None = None,
        rows: Sequence[DrawnRow] | None = None,
    ) -> "DraftTree":
        """A tree from plain lists."""
        if len(parents) > FEW:
            found = np.array(tokens, np.int64), np.array(parents, np.int64)
            return cls(*found, draw=draw, sources=sources, rows=rows)
        if len(tokens) != len(parents):
            raise ValueError(_unequal(len(tokens), len(parents)))
        _check_form(parents)
        # its arrays are made when somebody asks for them: most trees are only looked at
        tree = object.__new__(cls)
        tree.__dict__.update(draw=draw, sources=sources, chances=None, drawn_from=None)
        tree.__dict__.update(is_broken=False, rows=rows)
        if rows is None:
            tree.__dict__["probs"] = None
        tree.__dict__.update(token_list=list(tokens), parent_list=list(parents))
        return tree

    def __getattr__(self, name: str) -> np.ndarray:
        """The arrays of a tree from plain lists, or from rows."""
        lists = self.__dict__
        if name == "tokens" and "token_list" in lists:
            lists[name] = np.array(lists["token_list"], np.int64)
        elif name == "parents" and "parent_list" in lists:
            lists[name] = _parents_of_few(tuple(lists["parent_list"]))
        elif name == "probs" and lists.get("rows") is not None:
            lists[name] = np.stack([row.array() for row in lists["rows"]])
        else:
            raise AttributeError(f"a draft tree has no {name!r}")
        return lists[name]

    @classmethod
    def chain(cls, tokens: Sequence[int], draw: Draw = "chosen") -> "DraftTree":
        """A tree with one branch.

        ``tokens[0]`` is the root, each further token the child of the one before.
        """
        return cls.of(tokens, range(-1, len(tokens) - 1), draw)

    @property
    def is_drawn(self) -> bool:
        """True if siblings were drawn from rows of probabilities."""
        return self.rows is not None or self.probs is not None

    def __len__(self) -> int:
        known = self.__dict__.get("parent_list")
        return len(known) if known is not None else self.tokens.shape[0]

    def __repr__(self) -> str:
        return (
            f"DraftTree(tokens={self.tokens.tolist()}, parents={self.parents.tolist()},"
            f" draw={self.draw!r})"
        )

    @cached_property
    def token_list(self) -> list[int]:
        """Token ids on the host."""
        return self.tokens.tolist()

    @cached_property
    def parent_list(self) -> list[int]:
        """Parents on the host."""
        return self.parents.tolist()

    @cached_property
    def children(self) -> list[list[int]]:
        """Children of every node, in drawing order, on the host."""
        children: list[list[int]] = [[] for _ in range(len(self))]
        for node, parent in enumerate(self.parent_list):
            if parent >= 0:
                children[parent].append(node)
        return children

    @cached_property
    def ancestors(self) -> Bool[np.ndarray, "nodes nodes"]:
        """Entry (i, j) says that j is i or lies between i and the root."""
        return (_ancestors_of_few if len(self) <= FEW else _ancestors)(tuple(self.parent_list))

    @cached_property
    def depths(self) -> Int[np.ndarray, " nodes"]:
        """Edges between each node and the root."""
        return (_depths_of_few if len(self) <= FEW else _depths)(tuple(self.parent_list))

    @cached_property
    def depth(self) -> int:
        """Edges between the root and the deepest node."""
        return int(self.depths.max())

    def path_to(self, node: int) -> list[int]:
        """Nodes from the root's child down to ``node``; empty for the root itself."""
        parents, path = self.parent_list, []
        while node > 0:
            path.append(node)
            node = parents[node]
        return path[::-1]

    def keep(self, nodes: Sequence[int] | Int[np.ndarray, " kept"]) -> "DraftTree":
        """The tree of these nodes only, in this order.

        Each node's parent must be kept too and come before it.
        """
        kept = np.asarray(nodes, np.int64)
        # the last entry is for the parent of the root
        place = np.full(len(self) + 1, len(self))
        place[kept] = np.arange(len(kept))
        place[-1] = -1
        probs, rows = self._kept_rows(kept)
        sources = (
            None if self.sources is None else tuple(self.sources[node] for node in kept.tolist())
        )
        chances = None if self.chances is None else self.chances[kept]
        parents = place[self.parents[kept]]
        drawn_from = None if self.drawn_from is None else self.drawn_from[kept]
        return replace(
            self,
            tokens=self.tokens[kept],
            parents=parents,
            probs=probs,
            sources=sources,
            chances=chances,
            drawn_from=drawn_from,
            rows=rows,
        )

    def _kept_rows(
        self, kept: Int[np.ndarray, " kept"]
    ) -> tuple[Float[np.ndarray, "inner vocab"] | None, Sequence[DrawnRow] | None]:
        """Rows of these nodes, as array or not."""
        rows, probs = self.rows, None if self.rows is not None else self.probs
        held = probs if rows is None else rows
        if held is None or self.drawn_from is not None:
            return probs, rows
        inner = kept[kept < len(held)]
        if not bool((kept[: len(inner)] == inner).all()):
            raise ValueError("nodes with a row of probabilities must stand before those without")
        if rows is not None:
            return None, [rows[node] for node in inner.tolist()] or None
        assert probs is not None
        return probs[inner], None

    def row_of(self, node: int) -> Float[np.ndarray, " vocab"]:
        """The distribution that a node, not the root, was drawn from.

        Raises:
            ValueError: where nothing was drawn.
        """
        if self.rows is not None:
            return self.rows[self.parent_list[node]].array()
        if self.probs is None:
            raise ValueError("a tree of chosen nodes has no rows of probabilities")
        if self.drawn_from is not None:
            return self.probs[int(self.drawn_from[node])]
        return self.probs[self.parent_list[node]]

    def drawn_chances(self) -> Float[np.ndarray, " drafted"] | None:
        """Probability of each node but the root in the row it was drawn from; None if nothing was
        drawn.
        """
        if (held := self.rows) is not None:
            nodes = zip(self.parent_list[1:], self.token_list[1:], strict=True)
            chances = [held[parent].chance(token) for parent, token in nodes]
            return np.array(chances, np.float32)
        if self.probs is None:
            return None
        rows = self.parents if self.drawn_from is None else self.drawn_from
        return self.probs[rows[1:], self.tokens[1:]]

    def without_probs(self) -> "DraftTree":
        """The tree without its rows, which take megabytes.

        For those who keep the trees of a whole text.
        """
        drawn = self.drawn_chances()
        if drawn is None:
            return self
        chances = np.ones(len(self), np.float32)
        chances[1:] = drawn
        return replace(self, probs=None, rows=None, chances=chances, drawn_from=None)

    def truncated(self, depth: int) -> "DraftTree":
        """The tree without the nodes deeper than ``depth``.

        Exact for every draw, as it looks at no token.
        """
        return self if self.depth <= depth else self.keep(np.flatnonzero(self.depths <= depth))


def _unequal(tokens: int, parents: int) -> str:
    return (
        f"a draft tree needs a root and one parent per token, got {tokens} tokens and"
        f" {parents} parents"
    )


def _check_form(parents: Sequence[int]) -> None:
    if not parents:
        raise ValueError(_unequal(0, 0))
    if (
        parents[0] != -1
        or min(parents[1:], default=0) < 0
        or any(map(ge, parents, range(len(parents))))
    ):
        raise ValueError(
            "every node must come after its parent and only the root has parent -1, got parents"
            f" {list(parents)}"
        )


# Requests draw trees of the same few forms again and again, so these are shared by all of them.


@lru_cache(maxsize=512)
def _parents_of_few(parents: tuple[int, ...]) -> Int[np.ndarray, " nodes"]:
    return np.array(parents, np.int64)


def _ancestors(parents: tuple[int, ...]) -> Bool[np.ndarray, "nodes nodes"]:
    rows = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents[1:], start=1):
        rows[node] |= rows[parent]
    return rows


def _depths(parents: tuple[int, ...]) -> Int[np.ndarray, " nodes"]:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return np.array(depths, np.int64)


_ancestors_of_few = lru_cache(maxsize=512)(_ancestors)
_depths_of_few = lru_cache(maxsize=512)(_depths)
