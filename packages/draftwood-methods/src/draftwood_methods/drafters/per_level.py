"""Draft near tokens with a good drafter and far ones with a cheap one."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.drafter import (
    Drafter,
    DraftRequest,
    DraftSession,
    Reads,
    VerifiedTree,
)
from draftwood.drafters.resources import Resources
from draftwood.sampling import Context
from draftwood.shapes import Shape
from draftwood.sources.source import PythonSource, TargetUpdate
from draftwood.tree import DraftTree, Draw
from draftwood.validation import positive
from draftwood_methods.drafters.stand import normalised
from draftwood_methods.n_grams import NGramSource


@dataclass(frozen=True, eq=False)
class PerLevel(Drafter):
    """A drafter's tree whose deepest path goes on by what tables hold likely.

    The horizontal cascade of cascade speculative drafting (Chen et al. 2024, arXiv:2312.11462): the
    further a draft token, the less often it matters, so the less it may cost. Where the drafter
    draws, far tokens are drawn from the source's own row, normalised, and the tree keeps that row:
    whether there is one depends on the path to it alone, so rejection keeps the target's
    distribution. Elsewhere the likeliest token is taken.

    Differs from the paper: tables of the target's own rows in the place of a bigram model of a text
    collection.

    Args:
        near: drafts the tree.
        source: names what follows it, in Python.
        far: most tokens that the source adds.

    Raises:
        ValueError: for fewer than one, and for a source that only the library has.

    Example:
        The draft model drafts 3, the near token. What the target said after 1 2 3 in the prompt, 4,
        is the far one; nothing is known of what follows 4.

        >>> drafter = PerLevel(DraftModel(writing([1, 2, 3, 9]), Widths((1,))))
        >>> one_step(drafter, writing([1, 2, 3, 4, 5]), [1, 2, 3, 1, 2])
        OneStep(drafted=[[3, 4]], accepted=[3, 4], then=5)
    """

    name: ClassVar[str] = "horizontal"
    needs = DraftModel.needs
    uses = frozenset({"shape"})
    near: Drafter
    source: PythonSource = field(default_factory=NGramSource)
    far: int = 3

    def __post_init__(self) -> None:
        positive("far", [self.far])
        if not isinstance(self.source, PythonSource):
            raise ValueError(
                f"{self.name} asks its source in Python, and {self.source.name} is the library's;"
                " take draftwood_methods.n_grams.NGramSource"
            )

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        return cls(DraftModel.build(resources))

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return DraftModel.labels(shape)

    @property
    def draws(self) -> frozenset[Draw]:
        return self.near.draws

    def start(self, request: DraftRequest) -> DraftSession:
        return _PerLevelSession(self, request)


class _PerLevelSession(DraftSession):
    def __init__(self, config: PerLevel, request: DraftRequest) -> None:
        self.config, self.rng = config, request.rng
        self.near, self.source = config.near.start(request), config.source.start(request)
        self.sampling = request.row_sampling
        self.masked = request.mask

    @property
    def reads(self) -> Reads:
        near = self.near.reads
        return Reads(near.logits or self.config.source.reads_logits, near.hidden)

    @property
    def needs_prompt(self) -> bool:
        return self.near.needs_prompt or self.config.source.reads_logits

    def follow(self, first: DraftSession) -> None:
        assert isinstance(first, _PerLevelSession)
        self.near.follow(first.near)

    def propose(self, root: int, context: Context) -> DraftTree:
        tree = self.near.propose(root, context)
        if len(tree) == 1:
            return tree
        leaf = int(tree.depths.argmax())
        path = [root, *(tree.token_list[node] for node in tree.path_to(leaf))]
        state = self.source.begin(root)
        for token in path[1:]:
            state = self.source.advance(state, token)
        rows: list[dict[int, float]] = []
        for _ in range(min(self.config.far, context.max_draft_len - len(path) + 1)):
            row = self._row(state, context, path)
            if not row:
                break
            token = self._token(row, drawn=tree.probs is not None)
            state = self.source.advance(state, token)
            rows.append(row)
            path.append(token)
        far = path[len(path) - len(rows) :]
        return _longer(tree, leaf, far, rows, self.config.source.name)

    def _row(self, state: object, context: Context, path: list[int]) -> dict[int, float]:
        """Probabilities from the source's strongest evidence, restricted to what a constraint
        allows.
        """
        known = self.source.candidates(state)
        row = dict(known[0][1]) if known else {}
        mask = None if self.masked is None else self.masked.allowed(context.extended(path))
        if mask is not None:
            row = {token: row[token] for token in row if mask[token]}
        return normalised(row)

    def _token(self, row: dict[int, float], drawn: bool) -> int:
        if not drawn:
            return max(row, key=row.__getitem__)
        weights = np.array([list(row.values())], np.float32)
        return list(row)[int(self.rng.draw_distinct(weights, 1)[0, 0])]

    def update(self, verified: VerifiedTree) -> None:
        self.near.update(verified)
        self.source.learn(TargetUpdate(verified, self.sampling))

    def close(self) -> None:
        self.near.close()


def _longer(
    tree: DraftTree, leaf: int, tokens: list[int], rows: list[dict[int, float]], source: str
) -> DraftTree:
    """A tree with a chain of a source below one of its leaves, and the rows it was drawn from."""
    if not tokens:
        return tree
    size = len(tree)
    above = [leaf, *range(size, size + len(tokens) - 1)]
    probs, drawn_from, sources = tree.probs, tree.drawn_from, tree.sources
    if probs is not None and drawn_from is not None:
        more = np.zeros((len(rows), probs.shape[-1]), probs.dtype)
        for place, row in enumerate(rows):
            more[place, list(row)] = list(row.values())
        drawn_from = np.array([*drawn_from, *range(len(probs), len(probs) + len(rows))])
        probs = np.concatenate([probs, more])
    elif probs is not None:
        # rows belong to nodes: those of the tree's other leaves are empty
        more = np.zeros((size + len(tokens) - 1, probs.shape[-1]), probs.dtype)
        more[: min(len(probs), size)] = probs[:size]
        for node, row in zip([leaf, *range(size, len(more))], rows, strict=True):
            more[node] = 0.0
            more[node, list(row)] = list(row.values())
        probs = more
    return DraftTree(
        np.array([*tree.token_list, *tokens]),
        np.array([*tree.parent_list, *above]),
        probs,
        tree.draw,
        sources=None if sources is None else (*sources, *[(source,)] * len(tokens)),
        drawn_from=drawn_from,
        is_broken=tree.is_broken,
    )
