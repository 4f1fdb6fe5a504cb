"""Draft models that run a node when its children are read; the trees are those of whole drafts.

The random numbers of a tree are drawn before it, in the order in which a whole draft would spend
them, so each child is the one that a whole draft has. Beams of a level compete, so stochastic beams
are drafted whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, overload

from draftwood.drafters.draft_model import (
    DraftDistributions,
    DraftModel,
    ProbsBuffer,
    as_read_by,
)
from draftwood.drafters.drafter import DraftRequest, DraftSession, VerifiedTree
from draftwood.models.model import extend_in_chunks
from draftwood.models.session import PooledSession
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import Independent, Shape, Widths
from draftwood.tree import DraftTree, Draw


def widths_of(shape: Shape | None) -> Widths | None:
    """The shape as widths where nodes do not compete; None for others."""
    if type(shape) is Independent and shape.budget is None:
        return Widths((shape.chains,) + (1,) * (shape.length - 1), "independent")
    plain = type(shape) is Widths and shape.budget is None and shape.draw != "greedy-plus-one"
    return shape if plain and isinstance(shape, Widths) else None


def text_of(tree: Any, path: Sequence[int]) -> list[int]:
    """The tokens of nodes."""
    return [tree.token_list[node] for node in path]


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the tokens that both begin with."""
    both = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))


@dataclass(frozen=True, eq=False)
class LazyDraftModel(DraftModel):
    """A draft model whose trees are drawn as far as somebody reads them."""

    def start(self, request: DraftRequest) -> DraftSession:
        widths, sampler = widths_of(self.shape), request.sampler.for_drafting()
        fits = type(sampler) is Sampling and sampler.only_temperature and sampler.temperature > 0.0
        if widths is None or not fits or self.drafting.support is not None:
            return super().start(request)
        return _LazyDrafts(self, request, widths)


class _LazyDrafts(DraftSession):
    """One text; the cache holds its tokens, and the path of the tree that was read last."""

    def __init__(self, drafter: DraftModel, request: DraftRequest, widths: Widths) -> None:
        self.widths, self.rng = widths, request.rng
        self.sampler, vocab = request.sampler.for_drafting(), request.target.model.vocab_size
        self.vocab, self.memory = vocab, ProbsBuffer(1, vocab)
        self.session: Any = request.start(drafter.drafting.model)
        self.late: list[int] = []  # in the text, not yet in the cache
        self.tree: LazyTree | None = None
        self.path: list[int] = []  # nodes below the root that are in the cache
        self.first: Any = None  # runs the prompt for this one too

    def follow(self, first: DraftSession) -> None:
        self.first = first

    def update(self, verified: VerifiedTree) -> None:
        if self.tree is None:  # the prompt
            self.late += verified.tokens
            return
        kept = verified.path[1:]
        known = self._keep(kept)
        self.late += verified.tokens[1 + known :]
        self.tree, self.path = None, []

    def propose(self, root: int, context: Context) -> Any:
        first, self.first = self.first, None
        if first is not None and isinstance(first.session, PooledSession):
            first.session.fork(self.session, min(first.session.length, len(self.late)))
            self.late = self.late[self.session.length :]
        self.context = context
        most, limit = context.max_draft_len, self.session.model.context_length
        if limit is not None:
            most = min(most, limit - self.session.length - len(self.late))
        if most < 1:
            self.late.append(root)
            self.tree, self.path = LazyTree(root, (), "distinct", self), []
            return DraftTree.of([root], [-1])
        late = as_read_by(self.session.model, [*self.late, root])
        output = extend_in_chunks(self.session, late)
        widths, self.late = self.widths.widths[:most], []
        self.tree = LazyTree(root, widths, self.widths.draw, self)
        self.tree.take(0, self.rows(output.logits, self.tree))
        return self.tree

    def rows(self, logits: Any, tree: Any) -> Any:
        """The distribution after one node, as logits."""
        laws = DraftDistributions(self.sampler, self.context, self.vocab, self.memory)
        return laws.rows_after(logits, tree, 0, self.widths)

    def read(self, node: int) -> Any:
        """Run a node, and those above it that are not in the cache."""
        assert self.tree is not None
        wanted = self.tree.path_to(node)
        known = self._keep(wanted[:-1])
        tokens = as_read_by(self.session.model, text_of(self.tree, wanted[known:]))
        self.path = wanted
        return self.rows(self.session.extend(tokens, keep="last").logits, self.tree)

    def _keep(self, path: Sequence[int]) -> int:
        """Drop the nodes of the cache that are not on a path; gives how many are."""
        known = shared(text_of(self.tree, self.path), text_of(self.tree, path))
        if known < len(self.path):
            self.session.rewind(len(self.path) - known)
        self.path = self.path[:known]
        return known


class LazyTree:
    """A tree as verifiers read one, whose tokens are drawn when somebody asks for them.

    Args:
        widths: children of each node, level by level.
        source: that runs its nodes.
    """

    is_drawn = True
    sources = None

    def __init__(
        self, root: int, widths: Sequence[int], draw: Draw, source: _LazyDrafts | None
    ) -> None:
        self.draw, self.source, self.depth = draw, source, len(widths)
        self.parent_list, self.widths, level = [-1], [], [0]
        for width in widths:
            start = len(self.parent_list)
            self.parent_list += [node for node in level for _ in range(width)]
            self.widths += [width] * len(level)
            level = list(range(start, len(self.parent_list)))
        self.uniforms = _uniforms(source.rng if source else None, self.widths)
        self.tokens: dict[int, int] = {0: root}
        self.known: dict[int, Any] = {}  # distributions
        self.token_list = _Tokens(self)
        self.rows = _Rows(self)

    def __len__(self) -> int:
        return len(self.parent_list)

    @property
    def is_broken(self) -> bool:
        """True if a row that was read is no distribution."""
        return any(rows.is_broken for rows in self.known.values())

    @cached_property
    def children(self) -> list[list[int]]:
        """Children of every node, in drawing order."""
        children: list[list[int]] = [[] for _ in self.parent_list]
        for node, parent in enumerate(self.parent_list[1:], start=1):
            children[parent].append(node)
        return children

    path_to = DraftTree.path_to

    def row_of(self, node: int) -> Any:
        """The distribution that a node was drawn from."""
        return self.rows[self.parent_list[node]].array()

    def truncated(self, depth: int) -> "LazyTree":
        """The tree itself, which no limit of the text's length cuts."""
        if self.depth > depth:
            raise ValueError(f"a tree of {self.depth} levels was drafted where {depth} fit")
        return self

    def to(self, device: object) -> "LazyTree":
        return self

    def row(self, node: int) -> Any:
        """The distribution after a node, which is run if it was not."""
        if node not in self.known:
            assert self.source is not None
            self.take(node, self.source.read(node))
        return self.known[node]

    def take(self, node: int, rows: Any) -> None:
        """Draw the children of a node."""
        self.known[node] = rows
        children, uniforms = self.children[node], self.uniforms[node]
        distinct, count = self.draw == "distinct", len(children)
        if uniforms is None:
            likeliest = rows.likeliest(count if distinct else 1)
            drawn = likeliest if distinct else likeliest.repeated(count)
        else:
            drawn = rows.drawn(uniforms, count, distinct)
        self.tokens.update(zip(children, drawn.tokens[0], strict=True))

    def token(self, node: int) -> int:
        if node not in self.tokens:
            self.row(self.parent_list[node])
        return self.tokens[node]


def _uniforms(rng: Rng | None, widths: Sequence[int]) -> list[list[float] | None]:
    """Random numbers for the children of each inner node; None where the likeliest are taken."""
    if rng is None or not rng.noise:
        return [None for _ in widths]
    return [[rng.uniform() for _ in range(width)] for width in widths]


class _Tokens(Sequence[int]):
    """Tokens by node. A slice has those that are drawn."""

    def __init__(self, tree: LazyTree) -> None:
        self.tree = tree

    @overload
    def __getitem__(self, node: int) -> int: ...

    @overload
    def __getitem__(self, node: slice) -> list[int]: ...

    def __getitem__(self, node: int | slice) -> int | list[int]:
        if isinstance(node, slice):
            asked = range(*node.indices(len(self.tree)))
            return [self.tree.tokens[each] for each in asked if each in self.tree.tokens]
        return self.tree.token(node)

    def __len__(self) -> int:
        return len(self.tree)


class _Rows(Sequence[Any]):
    """Rows by node."""

    def __init__(self, tree: LazyTree) -> None:
        self.tree = tree

    def __getitem__(self, node: Any) -> Any:
        return self.tree.row(node).each()[0]

    def __len__(self) -> int:
        return len(self.tree.widths)
