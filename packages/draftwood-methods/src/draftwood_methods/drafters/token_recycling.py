"""Draft with what the target itself thought likely after each token, the last time it saw it."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from draftwood.drafters.drafter import (
    Drafter,
    DraftRequest,
    DraftSession,
    Reads,
    VerifiedTree,
)
from draftwood.drafters.resources import Resources
from draftwood.native.rows import topk
from draftwood.sampling import Context
from draftwood.shapes import Paths
from draftwood.tree import DraftTree

# Children per rank path of the published 80-node tree, level by level; paths not named have none.
_CHILDREN = {
    (): 8,
    **{(0,): 8, (1,): 4, (2,): 3, (3,): 2, (4,): 1, (5,): 1, (6,): 1, (7,): 1},
    **{(0, 0): 8, (0, 1): 3, (0, 2): 2, (0, 3): 1, (0, 4): 1, (0, 5): 1, (0, 6): 1, (0, 7): 1},
    **{(1, 0): 2, (1, 1): 1, (2, 0): 1, (3, 0): 1, (4, 0): 1, (5, 0): 1},
    **{(0, 0, 0): 5, (0, 0, 1): 2, (0, 0, 2): 1, (0, 0, 3): 1, (0, 0, 4): 1},
    **{(0, 1, 0): 1, (0, 2, 0): 1, (1, 0, 0): 1, (2, 0, 0): 1, (3, 0, 0): 1},
    **{
        (0, 0, 0, 0): 3,
        (0, 0, 0, 1): 1,
        (0, 0, 0, 2): 1,
        (0, 0, 1, 0): 1,
        (0, 1, 0, 0): 1,
        (1, 0, 0, 0): 1,
    },
    **{(0, 0, 0, 0, 0): 2, (0, 0, 0, 1, 0): 1},
}


def published_tree() -> Paths:
    """The 80-node tree of the paper: 8, 21, 25, 15, 8 and 3 nodes on six levels."""
    return Paths(tuple((*path, rank) for path, count in _CHILDREN.items() for rank in range(count)))


class Adjacency:
    """For every token the likeliest successors, best first; -1 where the token was not seen."""

    def __init__(self, vocab: int, ranks: int) -> None:
        self.table = np.full((vocab, ranks), -1)

    def __getitem__(self, tokens: Int[np.ndarray, " nodes"]) -> Int[np.ndarray, "nodes ranks"]:
        return self.table[tokens]

    def learn(self, tokens: list[int], successors: Int[np.ndarray, "nodes ranks"]) -> None:
        """Later entries win over earlier ones with the same token."""
        newest = {token: row for row, token in enumerate(tokens)}
        self.table[list(newest), : successors.shape[-1]] = successors[list(newest.values())]


@dataclass(frozen=True, eq=False)
class TokenRecycling(Drafter):
    """A fixed tree filled from a table of the likeliest successors of each token.

    Luo et al. 2024, arXiv:2408.08696. Every node of every forward pass renews the table.

    Differs from the paper: the prompt's logits fill the table too, tokens not seen yet draft
    nothing instead of token 0, and where a token is twice in a tree the accepted node's logits win,
    then the later node's.

    Args:
        shape: the tree of ranks.
        ranks: successors kept for each token.
        keep: carry the table over from request to request. Faster on like texts; the tokens stay
            exact, but how fast they come then depends on earlier requests.

    Example:
        The passes over 1 2 3 1 said that 3, then 0 is likeliest after 2, and 4 after 3. The tree
        asks for the best two successors of 2, and for the best one of the first of them.

        >>> drafter = TokenRecycling(Paths(((0,), (1,), (0, 0))))
        >>> one_step(drafter, writing([1, 2, 3, 4, 5]), [1, 2, 3, 1, 2])
        OneStep(drafted=[[0], [3, 4]], accepted=[3, 4], then=5)
    """

    name: ClassVar[str] = "token-recycling"
    uses = frozenset({"shape"})
    shape_type: ClassVar[type] = Paths
    shape: Paths = field(default_factory=published_tree)
    ranks: int = 8
    keep: bool = False
    _kept: list[Adjacency] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        wanted = 1 + max(rank for level in self.shape.levels for rank in level.ranks)
        if self.ranks < wanted:
            raise ValueError(
                f"the tree asks for {wanted} ranks, the table holds {self.ranks}; raise ranks"
            )

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        shape = resources.shape or published_tree()
        assert isinstance(shape, Paths)  # its shape_type
        ranks = max(cls.ranks, 1 + max(rank for level in shape.levels for rank in level.ranks))
        return cls(shape, ranks)

    def start(self, request: DraftRequest) -> DraftSession:
        if self.keep and self._kept:
            return _TokenRecyclingSession(self, self._kept[0])
        adjacency = Adjacency(request.target.model.vocab_size, self.ranks)
        if self.keep:
            self._kept.append(adjacency)
        return _TokenRecyclingSession(self, adjacency)


class _TokenRecyclingSession(DraftSession):
    def __init__(self, config: TokenRecycling, adjacency: Adjacency) -> None:
        self.config, self.adjacency = config, adjacency

    @property
    def reads(self) -> Reads:
        return Reads(logits=True)

    def propose(self, root: int, context: Context) -> DraftTree:
        return self.config.shape.fill(root, self.adjacency.__getitem__, context.max_draft_len)

    def update(self, verified: VerifiedTree) -> None:
        ranks = min(self.config.ranks, verified.logits.shape[-1])
        successors = topk(verified.logits, ranks)
        kept = set(verified.path)
        order = [node for node in range(len(verified.tree)) if node not in kept] + list(
            verified.path
        )
        self.adjacency.learn([verified.tree.token_list[node] for node in order], successors[order])
