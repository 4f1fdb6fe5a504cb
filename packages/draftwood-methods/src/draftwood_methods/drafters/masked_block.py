"""Draft with mask rows that run through the target under an adapter of their own."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from draftwood.drafters.draft_vocabulary import HeadDrafter
from draftwood.drafters.drafter import DraftRequest, DraftSession, Reads, VerifiedTree
from draftwood.drafters.partial import OwnPasses
from draftwood.models.model import RowsInput
from draftwood.models.native import NativeModel
from draftwood.models.requirements import require_ability
from draftwood.sampling import Context
from draftwood.tree import DraftTree
from draftwood_methods.heads.masked import MaskedConfig


@dataclass(frozen=True, eq=False)
class MaskedBlock(HeadDrafter):
    """A tree that a pass of the newest token and mask rows behind it drafts.

    The target drafts for itself: mask rows read its cache and its weights, under an adapter that
    acts on them alone (gated LoRA, Samragh et al. 2025, arXiv:2507.11851; with vectors alone,
    Chen et al. 2024, arXiv:2405.18628). The newest token's own row drafts the first level, which
    is always kept; mask row i drafts the level below the i-th. No row depends on what was drafted,
    so that rejection keeps the target's distribution.

    Args:
        trained: adapter, draft vocabulary and fingerprint of the target.
        target: the model whose text is written, run natively.
        shape: the tree to grow.

    Raises:
        ValueError: where the adapter is of another kind, belongs to other weights or to a model
            that cannot adapt rows.

    Example:
        The text is 1 2 3 4 5, and 5 is not run yet. A pass over 5 and two masks says 6 of 5, 7 of
        the first mask and 9 of the second. Drafted is 6 7 9. The target says 6, 7 and 8: it keeps
        6 7 and goes on with 8.
    """

    name: ClassVar[str] = "masked-block"

    def __post_init__(self) -> None:
        config = self.fitting(MaskedConfig)
        require_ability(self.target, "adapted_rows", self.name)
        if config.layers != self.target.layers:
            raise ValueError(
                f"the adapter is for {config.layers} layers, the target has {self.target.layers};"
                " take one of this model"
            )
        _ = self.adapter

    @property
    def masks(self) -> int:
        """Mask rows behind a token."""
        return self.trained.config.masks

    @cached_property
    def adapter(self) -> Any:
        """The adapter as passes of the target take it."""
        assert isinstance(self.target, NativeModel)  # no other has the ability
        weights = self.trained.weights
        return self.target.row_adapter(
            weights["mask_embedding"], self.trained.config.factors(weights)
        )

    def start(self, request: DraftRequest) -> DraftSession:
        return _MaskedSession(self, request)


@dataclass(frozen=True, eq=False)
class MaskedInPass(MaskedBlock):
    """A tree that mask rows of the last verification pass drafted, so that no pass only drafts.

    Mask rows hang below every node of the tree that is verified (Chen et al. 2024,
    arXiv:2405.18628; BiTA, Lin et al. 2024, arXiv:2401.12522). Those of the node that ends the
    accepted path draft the next tree: row i the level below the i-th place behind that node. They
    do not know the token that was drawn there.

    Example:
        The text is 1 2 3 4 5, the tree 6 7; two masks hang below each node. The target keeps 6
        and goes on with 8 in the place of 7. The masks below 6 stand at the place of 8 and behind
        it, and say 9 and 10: these are the next chain below 8.
    """

    name: ClassVar[str] = "masked-in-pass"

    def start(self, request: DraftRequest) -> DraftSession:
        return _InPassSession(self, request)


Levels = Float[np.ndarray, "levels vocab"]
"""Logits by level of the next tree, whichever nodes it has."""


class _MaskedSession(DraftSession):
    def __init__(self, config: MaskedBlock, request: DraftRequest) -> None:
        self.drafter, self.target = config, request.target
        self.passes = OwnPasses(request, config.shape.nodes)

    def propose(self, root: int, context: Context) -> DraftTree:
        levels = min(context.max_draft_len, 1 + self.drafter.masks, self.drafter.shape.depth)
        if levels < 1:
            return DraftTree.of([root], [-1])
        return self.grown(self.rows_behind(root, levels - 1), root, context)

    def grown(self, rows: Levels, root: int, context: Context) -> DraftTree:
        """A tree of the drafter's shape, as deep as there are rows."""
        return self.passes.grow(
            self.drafter.shape,
            root,
            replace(context, max_draft_len=len(rows)),
            lambda tree, first: rows[tree.depths[first:]],
        )

    def rows_behind(self, root: int, masks: int) -> Levels:
        """Logits behind the newest token and behind so many mask rows."""
        given = RowsInput(
            self.target,
            [root] + [0] * masks,
            self.target.length + np.arange(1 + masks),
            np.tri(1 + masks, dtype=bool),
            adapter=self.drafter.adapter,
            adapted=range(masks),
        )
        found = self.target.model.forward([given])[0].rows
        return np.concatenate([found[:1], self.drafted(found[1:])])

    def drafted(self, logits: Levels) -> Levels:
        """Logits of mask rows, with minus infinity for what the adapter did not learn to draft."""
        known = self.drafter.vocabulary
        return known.widened(logits[:, known.tokens])

    def update(self, verified: VerifiedTree) -> None:
        """Nothing to learn: the target's cache is what mask rows read."""


class _InPassSession(_MaskedSession):
    def __init__(self, config: MaskedInPass, request: DraftRequest) -> None:
        super().__init__(config, request)
        self.levels: Levels | None = None  # that the last pass drafted
        self.attached = 0  # mask rows of the last pass below each of its nodes

    @property
    def reads(self) -> Reads:
        return Reads(logits=self.attached > 0)

    @property
    def needs_prompt(self) -> bool:
        return False

    def propose(self, root: int, context: Context) -> DraftTree:
        levels = context.max_draft_len if self.levels is not None else 0
        if self.levels is None or levels < 1:
            return DraftTree.of([root], [-1])
        return self.grown(self.levels[:levels], root, context)

    def attach(self, tree: DraftTree) -> RowsInput | None:
        """Hang a mask row for each level of the shape below all nodes, if the context has room."""
        limit = self.target.model.context_length
        masks = min(self.drafter.masks, self.drafter.shape.depth)
        positions = self.target.length + tree.depths
        if limit is not None and positions.max() + masks >= limit:
            self.attached = 0
            return None
        self.attached = masks
        nodes, below = len(tree), np.repeat(np.arange(len(tree)), masks)
        sees = np.zeros((nodes + len(below),) * 2, bool)
        sees[:nodes, :nodes], sees[nodes:, :nodes] = tree.ancestors, tree.ancestors[below]
        sees[nodes:, nodes:] = (below[:, None] == below) & np.tri(len(below), dtype=bool)
        behind = np.tile(np.arange(masks), nodes)
        return RowsInput(
            self.target,
            [*tree.token_list, *[0] * len(below)],
            np.concatenate([positions, positions[below] + 1 + behind]),
            sees,
            adapter=self.drafter.adapter,
            adapted=behind.tolist(),
        )

    def update(self, verified: VerifiedTree) -> None:
        self.levels = None
        if not self.attached or verified.output is None:
            return
        first = len(verified.tree) + verified.path[-1] * self.attached
        self.levels = self.drafted(verified.output.rows[first : first + self.attached])
