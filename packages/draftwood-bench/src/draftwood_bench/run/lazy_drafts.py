"""Draft models that run a node when its children are read; the trees are those of whole drafts.

The random numbers of a tree are drawn before it, in the order in which a whole draft would spend
them, so each child is the one that a whole draft has. Beams of a level compete, so stochastic beams
are drafted whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

from draftwood.drafters.draft_model import DraftDistributions, DraftModel
from draftwood.drafters.drafter import DraftRequest, DraftSession, VerifiedTree
from draftwood.rng import Rng
from draftwood.sampling import Context, Sampling
from draftwood.shapes import Shape, Widths
from draftwood.tree import DraftTree, Draw
from draftwood_bench.run.shared_rows import SharedRows


def widths_of(shape: Shape | None) -> Widths | None:
    """The shape as widths where nodes do not compete; None for others."""
    known: Any = shape
    if shape is None or shape.name not in ("widths", "independent") or known.budget is not None:
        return None
    return None if known.draw == "greedy-plus-one" else Widths(known.widths, known.draw)


@dataclass(frozen=True, eq=False)
class LazyDraftModel(DraftModel):
    """A draft model whose trees are drawn as far as somebody reads them.

    Attributes:
        rows_behind: rows of the draft model after texts behind a prompt.
    """

    rows_behind: Callable[[Sequence[int]], SharedRows] | None = None

    def start(self, request: DraftRequest) -> DraftSession:
        widths, sampler = widths_of(self.shape), request.sampler.for_drafting()
        fits = type(sampler) is Sampling and sampler.only_temperature and sampler.temperature > 0.0
        behind = self.rows_behind
        if widths is None or not fits or self.drafting.support is not None or behind is None:
            return super().start(request)
        return _LazyDrafts(self, request, widths, behind)


class _LazyDrafts(DraftSession):
    """One text."""

    def __init__(
        self,
        drafter: DraftModel,
        request: DraftRequest,
        widths: Widths,
        rows_behind: Callable[[Sequence[int]], SharedRows],
    ) -> None:
        self.widths, self.rng, self.rows_behind = widths, request.rng, rows_behind
        self.sampler = request.sampler.for_drafting()
        self.vocab, self.model = request.target.model.vocab_size, drafter.drafting.model

    def update(self, verified: VerifiedTree) -> None:
        pass

    def propose(self, root: int, context: Context) -> Any:
        tokens = DraftModel.as_read_by(self.model, [*context.tokens, root])
        self.shared = self.rows_behind(tokens[: context.prompt])
        self.context, self.text = context, tokens[context.prompt :]
        most, limit = context.max_draft_len, self.model.context_length
        if limit is not None:
            most = min(most, limit - len(context.tokens))
        if most < 1:
            return DraftTree.of([root], [-1])
        self.tree = LazyTree(root, self.widths.widths[:most], self.widths.draw, self)
        return self.tree

    def read(self, node: int) -> Any:
        """The distribution after a node, whose row is run if it was not."""
        path = [self.tree.token(each) for each in self.tree.path_to(node)] if node else []
        logits = self.shared.after([*self.text, *DraftModel.as_read_by(self.model, path)])
        laws, tree = DraftDistributions(self.sampler, self.context, self.vocab), self.tree
        return laws.rows_after(logits, tree, 0, self.widths)  # type: ignore[arg-type]


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
        is_noisy = uniforms is not None
        drawn = rows.drawn(uniforms, count, distinct) if is_noisy else rows.likeliest(count)
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
