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

from draftwood.drafters.draft_model import DraftDistributions, DraftModel
from draftwood.drafters.drafter import DraftRequest, DraftSession, VerifiedTree
from draftwood.models.model import extend_in_chunks
from draftwood.models.session import PooledSession
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import Shape, Widths
from draftwood.tree import DraftTree, Draw


def widths_of(shape: Shape | None) -> Widths | None:
    """The shape as widths where nodes do not compete; None for others."""
    known: Any = shape
    if shape is None or shape.name not in ("widths", "independent") or known.budget is not None:
        return None
    return None if known.draw == "greedy-plus-one" else Widths(known.widths, known.draw)


def text_of(tree: Any, path: Sequence[int]) -> list[int]:
    """The tokens of nodes."""
    return [tree.token_list[node] for node in path]


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the tokens that both begin with."""
    both = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))


class PathInCache:
    """Nodes of a tree that a session's cache holds behind its text: those of one path.

    Siblings that hold one token are one place of the text, so what counts of a path is its tokens.

    Attributes:
        nodes: of the path that was run last.
    """

    def __init__(self, session: Any, tree: Any) -> None:
        self.session, self.tree = session, tree
        self.nodes: list[int] = []

    def shared_with(self, path: Sequence[int]) -> int:
        """Number of tokens that both paths begin with."""
        return shared(text_of(self.tree, self.nodes), text_of(self.tree, path))

    def keep(self, path: Sequence[int]) -> int:
        """Drop the nodes that are not on a path; gives how many of it are there."""
        known = self.shared_with(path)
        if known < len(self.nodes):
            self.session.rewind(len(self.nodes) - known)
        self.nodes = list(path[:known])
        return known

    def lead_to(self, path: Sequence[int]) -> list[int]:
        """Make the cache that of a path; gives the tokens yet to be run, the last one at least."""
        known = self.keep(path[:-1])
        self.nodes = list(path)
        return text_of(self.tree, path[known:])


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
        self.vocab = vocab
        self.session: Any = request.start(drafter.drafting.model)
        self.late: list[int] = []  # in the text, not yet in the cache
        self.tree: LazyTree | None = None
        self.path = PathInCache(self.session, None)  # nodes below the tree's root
        self.first: Any = None  # runs the prompt for this one too

    def follow(self, first: DraftSession) -> None:
        self.first = first

    def update(self, verified: VerifiedTree) -> None:
        if self.tree is None:  # the prompt
            self.late += verified.tokens
            return
        known = self.path.keep(verified.path[1:])
        self.late += verified.tokens[1 + known :]
        self.tree = None

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
            self._begin(LazyTree(root, (), "distinct", self))
            return DraftTree.of([root], [-1])
        late = DraftModel.as_read_by(self.session.model, [*self.late, root])
        output = extend_in_chunks(self.session, late)
        widths, self.late = self.widths.widths[:most], []
        tree = self._begin(LazyTree(root, widths, self.widths.draw, self))
        tree.take(0, self._rows(output.logits))
        return tree

    def _begin(self, tree: "LazyTree") -> "LazyTree":
        self.tree, self.path = tree, PathInCache(self.session, tree)
        return tree

    def _rows(self, logits: Any) -> Any:
        """The distribution after one node, as logits."""
        laws = DraftDistributions(self.sampler, self.context, self.vocab)
        return laws.rows_after(logits, self.path.tree, 0, self.widths)

    def read(self, node: int) -> Any:
        """Run a node, and those above it that are not in the cache."""
        left = self.path.lead_to(self.path.tree.path_to(node))
        tokens = DraftModel.as_read_by(self.session.model, left)
        return self._rows(self.session.extend(tokens, keep="last").logits)


class LazyTree:
    """A tree as verifiers read one, whose tokens are drawn when somebody asks for them.

    Args:
        widths: children of each node, level by level.
        source: that runs its nodes.
    """

    is_drawn = True
    sources = None

    def __init__(self, root: int, widths: Sequence[int], draw: Draw, source: _LazyDrafts) -> None:
        self.draw, self.source, self.depth = draw, source, len(widths)
        self.parent_list, self.widths, level = [-1], [], [0]
        for width in widths:
            start = len(self.parent_list)
            self.parent_list += [node for node in level for _ in range(width)]
            self.widths += [width] * len(level)
            level = list(range(start, len(self.parent_list)))
        self.uniforms = _uniforms(source.rng, self.widths)
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

    def row(self, node: int) -> Any:
        """The distribution after a node, which is run if it was not."""
        if node not in self.known:
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


def _uniforms(rng: Rng, widths: Sequence[int]) -> list[list[float] | None]:
    """Random numbers for the children of each inner node; None where the likeliest are taken."""
    if not rng.noise:
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
